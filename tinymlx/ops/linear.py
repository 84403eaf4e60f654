"""Matrix times vector with dense or group-quantised weights, and a low-rank adapter beside it."""

from typing import NamedTuple

import mlx.core as mx

from tinymlx import ops


class Quantization(NamedTuple):
    """How a weight is packed: `bits` a value, `group_size` values sharing a scale (and a bias in mode "affine")."""

    group_size: int = 64
    bits: int = 4
    mode: str = "affine"  # or "mxfp4"


class Lora(NamedTuple):
    """A low-rank change of a weight (Hu et al., 2021, arXiv:2106.09685): W + scale * b a."""

    a: mx.array  # [r, K], of experts [E, r, K]
    b: mx.array  # [N, r], of experts [E, N, r]
    scale: float
    column_scale: mx.array | None = None  # [N]: DoRA's magnitude over the norm of the changed row (arXiv:2402.09353)


class Linear(NamedTuple):
    """y = x W^T + bias. W is dense [N, K], or packed [N, K * bits / 32] uint32 with scales (and biases) [N, K / group_size].

    Experts of a mixture carry a leading axis E on every array.
    """

    weight: mx.array
    bias: mx.array | None = None
    scales: mx.array | None = None
    biases: mx.array | None = None
    quantization: Quantization | None = None
    lora: Lora | None = None


def linear(x: mx.array, w: Linear) -> mx.array:
    """x: [..., K] -> [..., N] in x's dtype."""
    y = x @ ops.dequantize(w).astype(x.dtype).swapaxes(-1, -2)
    if w.lora is not None:
        y = add_lora(y, x, w.lora)
    if w.bias is not None:
        y = y + w.bias
    return y


def add_lora(y: mx.array, x: mx.array, lora: Lora) -> mx.array:
    """y: [..., N] = x W^T without bias -> x (W + scale * b a)^T, each output scaled again where the adapter is DoRA."""
    y = y + (lora.scale * (x @ lora.a.swapaxes(-1, -2) @ lora.b.swapaxes(-1, -2))).astype(x.dtype)
    return y if lora.column_scale is None else y * lora.column_scale
