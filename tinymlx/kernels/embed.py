"""embed: token ids to vectors."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.kernels.route import Operation, Route
from tinymlx.ops.linear import Linear


def twin(tokens: mx.array, table: Linear, dtype: mx.Dtype) -> mx.array:
    """tokens: [B, L]; table: [V, K]. Returns [B, L, K] in `dtype`."""
    return ops.embedding(tokens, table).astype(dtype)


# The readable form already touches no more than the rows asked for: there is nothing for another route to win.
embed = Operation("embed", covers=("embedding",), routes={"twin": Route(twin)})
