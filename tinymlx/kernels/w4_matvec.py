"""Few rows times packed weights, by our own kernels: what the operations' `ours` routes are made of while there are few rows."""

import functools
from collections.abc import Callable

import mlx.core as mx

from tinymlx.kernels.metal import MetalKernel
from tinymlx.ops.linear import Linear, add_lora

FLOATS = (mx.float32, mx.float16, mx.bfloat16)
FORMATS = {("affine", 4): (32, 64, 128), ("affine", 8): (32, 64, 128), ("mxfp4", 4): (32,)}
"""(mode, bits) -> group sizes that the kernels take."""
SCRATCH = "threadgroup float partial[TILES * SPLITS * (OUTPUTS + 1) * M];\n  "
PLACE = "threadgroup_position_in_grid.x, TILES, simdgroup_index_in_threadgroup, thread_index_in_simdgroup, partial);\n"


@functools.cache
def _kernel(norm: bool, delta: bool, residual: bool) -> MetalKernel:
    """Only with the buffers that it reads: each costs host time. Where there is none, x stands for it and is not touched."""
    buffers = {"weight": norm, "eps": norm, "delta": delta, "residual": residual}
    name = {buffer: buffer if used else "x" for buffer, used in buffers.items()}
    flags = ", ".join(str(flag).lower() for flag in (norm, delta, residual))
    return MetalKernel(
        "w4_matvec",
        inputs=("x", "w", "scales", "biases", *(buffer for buffer, used in buffers.items() if used)),
        outputs=("y",),
        body=f"""  {SCRATCH}w4_matvec<T, MATRIX, M, GROUP, BITS, MX, {flags}, OUTPUTS, SPLITS>(x, {name["weight"]}, {name["eps"]},
      Packed<S>{{w, scales, biases}}, {name["delta"]}, {name["residual"]}, y, K, N, {PLACE}""",
    )


def w4_matvec(
    x: mx.array,
    w: Linear,
    norm: tuple[mx.array, float] | None = None,
    delta: mx.array | None = None,
    residual: mx.array | None = None,
) -> mx.array:
    """h W^T + delta + residual, where h is x, or with `norm` = (weight [K], eps) its rms_norm.

    x: [..., K] of at most 16 rows, on CUDA 32; w: [N, K] packed (`FORMATS`), its bias and adapter are left to the caller; delta, residual: [..., N] in
    x's dtype. Returns [..., N] in x's dtype. Raises ValueError for another packing, shapes that do not fit, more rows, or another dtype.
    """
    check_packed(x, w)
    check_rows(x, norm is not None)
    shape = (*x.shape[:-1], w.weight.shape[0])
    check_like(x, shape, delta=delta, residual=residual)
    if norm is not None:
        check_norm(x, norm[0])
    if 0 in shape:
        return mx.zeros(shape, x.dtype)
    kernel = _kernel(norm is not None, delta is not None, residual is not None)
    more = [*((norm[0], constant(norm[1])) if norm else ()), *(a for a in (delta, residual) if a is not None)]
    sizes = launch(x, w, shape[-1], norm is not None, N=shape[-1])
    return kernel(x, *packed(w), *more, **sizes, shapes=[shape], dtypes=[x.dtype])[0]


def on_matrix_units(x: mx.array, normed: bool) -> bool:
    """Whether matrix units multiply. On CUDA that pays from 3 rows on (measured on an H200, see benchmarks/LOG.md).

    Not float32, which tensor cores round, nor a norm of float16: x is multiplied by its weight before it is scaled, and may overflow.
    """
    rows = x.size // x.shape[-1]
    fits = x.dtype == mx.bfloat16 or (x.dtype == mx.float16 and not normed)
    return rows > 2 and fits and mx.cuda.is_available() and mx.default_device() == mx.gpu


def most_rows(x: mx.array, normed: bool) -> int:
    return 32 if on_matrix_units(x, normed) else 16


def geometry(rows: int, outputs: int, K: int, matrix: bool) -> tuple[int, int, int]:
    """(OUTPUTS, TILES, SPLITS) for `outputs` numbers a row: tuned on an H200, see benchmarks/LOG.md.

    SPLITS, on which the order of additions depends, is the same for any number of rows.
    """
    if not matrix:
        return 4, 2, 2 if K >= 2048 else 1
    splits = 4 if outputs >= 16384 or K < 2048 else 8
    return (16 if rows <= 16 else 32), 1, splits


def launch(
    x: mx.array, w: Linear, outputs: int, normed: bool, tiles: Callable[[int], int] | None = None, **template
) -> dict:
    """What our matvec kernels share of a call. outputs: numbers a row in all; tiles: OUTPUTS -> their count, by default outputs / OUTPUTS."""
    K = x.shape[-1]
    rows, (group, bits, mode) = x.size // K, w.quantization
    matrix = on_matrix_units(x, normed)
    tile, together, splits = geometry(rows, outputs, K, matrix)
    count = tiles(tile) if tiles else -(-outputs // tile)
    numbers = {"MATRIX": matrix, "M": rows, "GROUP": group, "BITS": bits, "MX": mode == "mxfp4"}
    lanes = together * splits * 32
    return {
        "template": {
            "T": x.dtype,
            "S": w.scales.dtype,
            **numbers,
            "OUTPUTS": tile,
            "TILES": together,
            "SPLITS": splits,
            "K": K,
            **template,
        },
        "grid": (-(-count // together) * lanes, 1, 1),
        "threadgroup": (lanes, 1, 1),
    }


def packed(w: Linear) -> tuple[mx.array, mx.array, mx.array]:
    return w.weight, w.scales, w.scales if w.biases is None else w.biases


@functools.lru_cache
def constant(eps: float) -> mx.array:
    return mx.array([eps] * 8, mx.float32)


def takes(x: mx.array, *weights: Linear, norm: mx.array | None = None, residual: mx.array | None = None) -> bool:
    """Whether our kernels take these weights, all packed alike, with no bias and at most a plain adapter.

    norm: its weight must have x's dtype, since a wider one makes the outputs of the other routes wider. residual: as large as the product.
    """
    try:
        for w in weights:
            check_packed(x, w)
    except ValueError:
        return False
    if norm is not None and (norm.dtype != x.dtype or norm.shape != x.shape[-1:]):
        return False
    if residual is not None and (residual.dtype, residual.shape) != (x.dtype, (*x.shape[:-1], len(weights[0].weight))):
        return False
    alike = len({(w.quantization, w.scales.dtype) for w in weights}) == 1
    return (
        x.size > 0
        and alike
        and all(w.bias is None and (w.lora is None or w.lora.column_scale is None) for w in weights)
    )


def adapted(x: mx.array, *weights: Linear) -> list[mx.array] | None:
    """What each weight's adapter adds to its product with x, zero where only others have one; None if none has."""
    if all(w.lora is None for w in weights):
        return None
    zeros = [mx.zeros((*x.shape[:-1], w.weight.shape[0]), x.dtype) for w in weights]
    return [y if w.lora is None else add_lora(y, x, w.lora) for y, w in zip(zeros, weights)]


def check_rows(x: mx.array, normed: bool) -> None:
    rows, most = x.size // x.shape[-1], most_rows(x, normed)
    if rows > most:
        raise ValueError(f"x has {rows} rows; at most {most} are accepted")


def check_packed(x: mx.array, w: Linear) -> None:
    """Raises ValueError unless x [..., K] can be multiplied by the packed w [N, K]."""
    K = check_weight(w)
    if x.ndim == 0 or x.shape[-1] != K:
        raise ValueError(f"x has shape {x.shape}; w of {w.weight.shape} needs [..., {K}]")
    if x.dtype not in FLOATS:
        raise ValueError(f"x is {x.dtype}; float32, float16 or bfloat16 is accepted")


def check_weight(w: Linear) -> int:
    """K of a packed w [N, K]. Raises ValueError for a packing that our kernels do not take, or parts that do not belong together."""
    quantization = w.quantization
    if quantization is None or (quantization.mode, quantization.bits) not in FORMATS:
        raise ValueError(f"w is packed as {quantization}; affine with 4 or 8 bits and mxfp4 are accepted")
    if w.weight.ndim != 2 or w.weight.dtype != mx.uint32:
        raise ValueError(
            f"w is {w.weight.dtype} {w.weight.shape}; uint32 [N, K * {quantization.bits} / 32] is accepted"
        )
    group_sizes = FORMATS[quantization.mode, quantization.bits]
    K = w.weight.shape[1] * 32 // quantization.bits
    if quantization.group_size not in group_sizes or K == 0 or K % quantization.group_size:
        accepted = ", ".join(map(str, group_sizes))
        raise ValueError(f"group_size is {quantization.group_size} and K {K}; {accepted} that divide K are accepted")
    scaled = (w.weight.shape[0], K // quantization.group_size)
    mx_scales = quantization.mode == "mxfp4"
    for name, array in (("scales", w.scales), *([] if mx_scales else [("biases", w.biases)])):
        if array is None or array.shape != scaled:
            raise ValueError(f"{name} has shape {getattr(array, 'shape', None)}; w of {w.weight.shape} needs {scaled}")
        if array.dtype not in ((mx.uint8,) if mx_scales else FLOATS):
            accepted = "uint8" if mx_scales else "float32, float16 or bfloat16"
            raise ValueError(f"{name} is {array.dtype}; {accepted} is accepted")
    if not mx_scales and w.scales.dtype != w.biases.dtype:
        raise ValueError(f"scales is {w.scales.dtype} and biases {w.biases.dtype}; one dtype is accepted")
    return K


def check_like(x: mx.array, shape: tuple[int, ...], **arrays: mx.array | None) -> None:
    """Raises ValueError for an array that is not of x's dtype and `shape`."""
    for name, array in arrays.items():
        if array is not None and (array.shape != shape or array.dtype != x.dtype):
            raise ValueError(f"{name} is {array.dtype} {array.shape}; {x.dtype} {shape} is accepted")


def check_norm(x: mx.array, weight: mx.array) -> None:
    if weight.shape != x.shape[-1:] or weight.dtype not in FLOATS:
        raise ValueError(f"weight is {weight.dtype} {weight.shape}; floating point {x.shape[-1:]} is accepted")
