"""linear_residual: a projection added to the stream it came from (attention's output, the MLP's down projection)."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.kernels import cpu, linear_mlx
from tinymlx.kernels.route import Operation, Route
from tinymlx.kernels.w4_matmul import w4_linear
from tinymlx.kernels.w4_matvec import adapted, most_rows, takes, w4_matvec
from tinymlx.ops.linear import Linear


def twin(residual: mx.array, x: mx.array, w: Linear) -> mx.array:
    """residual: [B, L, N]; x: [B, L, K]. Returns residual + x W^T: [B, L, N]."""
    return residual + ops.linear(x, w)


def mlx(residual: mx.array, x: mx.array, w: Linear) -> mx.array:
    return residual + linear_mlx.linear(x, w)


def host(residual: mx.array, x: mx.array, w: Linear) -> mx.array:
    return cpu.linears(x, w, residual=residual)[0]


def ours(residual: mx.array, x: mx.array, w: Linear) -> mx.array:
    if x.size // x.shape[-1] > most_rows(x, normed=False):
        return residual + w4_linear(x, w)
    deltas = adapted(x, w)
    return w4_matvec(x, w, delta=deltas and deltas[0], residual=residual)


linear_residual = Operation(
    "linear_residual",
    covers=("linear", "dequantize"),
    routes={
        "twin": Route(twin),
        "mlx": Route(mlx),
        "host": Route(host, applies=lambda residual, x, w: cpu.takes(x, w, residual=residual)),
        "ours": Route(ours, applies=lambda residual, x, w: takes(x, w, residual=residual)),
    },
)
