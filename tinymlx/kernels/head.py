"""head: the last norm and the projection to the vocabulary."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.kernels import linear_mlx
from tinymlx.kernels.route import Operation, Route
from tinymlx.ops.linear import Linear


def twin(x: mx.array, weight: mx.array, eps: float, w: Linear) -> mx.array:
    """x: [B, L, K]; weight: [K]; w: [V, K]. Returns logits [B, L, V]."""
    return ops.linear(ops.rms_norm(x, weight, eps), w)


def mlx(x: mx.array, weight: mx.array, eps: float, w: Linear) -> mx.array:
    return linear_mlx.linear(mx.fast.rms_norm(x, weight, eps), w)


head = Operation("head", covers=("rms_norm", "linear", "dequantize", "unpack"), routes={"twin": Route(twin), "mlx": Route(mlx)})
