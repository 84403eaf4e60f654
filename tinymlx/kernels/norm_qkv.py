"""norm_qkv: the block's first norm and the three projections that read it."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.kernels import linear_mlx
from tinymlx.kernels.route import Operation, Route
from tinymlx.ops.linear import Linear


def twin(
    x: mx.array, weight: mx.array, eps: float, q: Linear, k: Linear, v: Linear
) -> tuple[mx.array, mx.array, mx.array]:
    """x: [B, L, K]; weight: [K]. Returns [B, L, H*D], [B, L, G*D], [B, L, G*D]."""
    normed = ops.rms_norm(x, weight, eps)
    return ops.linear(normed, q), ops.linear(normed, k), ops.linear(normed, v)


def mlx(
    x: mx.array, weight: mx.array, eps: float, q: Linear, k: Linear, v: Linear
) -> tuple[mx.array, mx.array, mx.array]:
    normed = mx.fast.rms_norm(x, weight, eps)
    return linear_mlx.linear(normed, q), linear_mlx.linear(normed, k), linear_mlx.linear(normed, v)


norm_qkv = Operation(
    "norm_qkv", covers=("rms_norm", "linear", "dequantize", "unpack"), routes={"twin": Route(twin), "mlx": Route(mlx)}
)
