"""head: the last norm and the projection to the vocabulary."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.kernels import cpu, linear_mlx
from tinymlx.kernels.route import Operation, Route
from tinymlx.kernels.w4_matmul import w4_linear
from tinymlx.kernels.w4_matvec import adapted, most_rows, takes, w4_matvec
from tinymlx.ops.linear import Linear


def twin(x: mx.array, weight: mx.array, eps: float, w: Linear) -> mx.array:
    """x: [B, L, K]; weight: [K]; w: [V, K]. Returns logits [B, L, V]."""
    return ops.linear(ops.rms_norm(x, weight, eps), w)


def mlx(x: mx.array, weight: mx.array, eps: float, w: Linear) -> mx.array:
    return linear_mlx.linear(mx.fast.rms_norm(x, weight, eps), w)


def host(x: mx.array, weight: mx.array, eps: float, w: Linear) -> mx.array:
    return cpu.linears(x, w, norm=(weight, eps))[0]


def ours(x: mx.array, weight: mx.array, eps: float, w: Linear) -> mx.array:
    if x.size // x.shape[-1] > most_rows(x, normed=True):
        return w4_linear(mx.fast.rms_norm(x, weight, eps), w)
    deltas = adapted(mx.fast.rms_norm(x, weight, eps), w)
    return w4_matvec(x, w, norm=(weight, eps), delta=deltas and deltas[0])


head = Operation(
    "head",
    covers=("rms_norm", "linear", "dequantize"),
    routes={
        "twin": Route(twin),
        "mlx": Route(mlx),
        "host": Route(host, applies=lambda x, weight, eps, w: cpu.takes(x, w, norm=weight)),
        "ours": Route(ours, applies=lambda x, weight, eps, w: takes(x, w, norm=weight)),
    },
)
