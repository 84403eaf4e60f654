"""Token ids to vectors."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.ops.linear import Linear


def embedding(tokens: mx.array, table: Linear) -> mx.array:
    """tokens: [B, L] integers below V; table: [V, K]. Returns [B, L, K]. Only the rows asked for are unpacked."""
    rows = Linear(
        table.weight[tokens],
        scales=None if table.scales is None else table.scales[tokens],
        biases=None if table.biases is None else table.biases[tokens],
        quantization=table.quantization,
    )
    return ops.dequantize(rows)
