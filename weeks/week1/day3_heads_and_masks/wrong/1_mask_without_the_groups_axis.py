"""[B, 1, L, T] broadcasts to [B, G, H / G, L, T] from the right: row b's mask falls on key head b.

caught by: TestTask1GroupedQueryAttention::test_mask
"""

import mlx.core as mx

from tinymlx import ops


def grouped_query_attention(
    q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    B, H, L, D = q.shape
    G = k.shape[1]
    grouped = q.reshape(B, G, H // G, L, D)
    y, lse = ops.scaled_dot_product_attention(grouped, k[:, :, None], v[:, :, None], scale=scale, mask=mask)
    return y.reshape(B, H, L, D), lse.reshape(B, H, L)
