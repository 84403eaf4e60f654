"""norm_gate_up: the block's second norm, gate and up projections, SwiGLU."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.kernels import linear_mlx
from tinymlx.kernels.route import Operation, Route
from tinymlx.ops.linear import Linear


def twin(x: mx.array, weight: mx.array, eps: float, gate: Linear, up: Linear) -> mx.array:
    """x: [B, L, K]; weight: [K]; gate, up: [N, K]. Returns silu(gate) * up of the normed x: [B, L, N]."""
    normed = ops.rms_norm(x, weight, eps)
    return ops.swiglu(ops.linear(normed, gate), ops.linear(normed, up))


def mlx(x: mx.array, weight: mx.array, eps: float, gate: Linear, up: Linear) -> mx.array:
    normed = mx.fast.rms_norm(x, weight, eps)
    return ops.swiglu(linear_mlx.linear(normed, gate), linear_mlx.linear(normed, up))


norm_gate_up = Operation(
    "norm_gate_up",
    covers=("rms_norm", "linear", "dequantize", "unpack", "swiglu", "silu"),
    routes={"twin": Route(twin), "mlx": Route(mlx)},
)
