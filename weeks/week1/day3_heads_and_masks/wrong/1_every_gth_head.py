"""Head h reads key head h % G, the order of tile: a checkpoint's heads are then paired with strangers, and text is noise.

caught by: TestTask1GroupedQueryAttention::test_neighbours_share
"""

import mlx.core as mx

from tinymlx import ops


def grouped_query_attention(
    q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    B, H, L, D = q.shape
    G = k.shape[1]
    grouped = q.reshape(B, H // G, G, L, D)
    mask = None if mask is None else mask[:, :, None]
    y, lse = ops.scaled_dot_product_attention(grouped, k[:, None], v[:, None], scale=scale, mask=mask)
    return y.reshape(B, H, L, D), lse.reshape(B, H, L)
