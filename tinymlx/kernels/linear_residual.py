"""linear_residual: a projection added to the stream it came from (attention's output, the MLP's down projection)."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.kernels import linear_mlx
from tinymlx.kernels.route import Operation, Route
from tinymlx.ops.linear import Linear


def twin(residual: mx.array, x: mx.array, w: Linear) -> mx.array:
    """residual: [B, L, N]; x: [B, L, K]. Returns residual + x W^T: [B, L, N]."""
    return residual + ops.linear(x, w)


def mlx(residual: mx.array, x: mx.array, w: Linear) -> mx.array:
    return residual + linear_mlx.linear(x, w)


linear_residual = Operation(
    "linear_residual", covers=("linear", "dequantize", "unpack"), routes={"twin": Route(twin), "mlx": Route(mlx)}
)
