"""Treats a group's heads as more queries, which is fine, and takes them apart in the wrong order.

caught by: TestTask1GroupedQueryAttention::test_against_float64
"""

import mlx.core as mx

from tinymlx import ops


def grouped_query_attention(
    q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    B, H, L, D = q.shape
    G = k.shape[1]
    joined = q.reshape(B, G, H // G * L, D)  # [head, query] in a row
    mask = None if mask is None else mx.tile(mask, (1, 1, H // G, 1))
    y, lse = ops.scaled_dot_product_attention(joined, k, v, scale=scale, mask=mask)
    y, lse = y.reshape(B, G, L, H // G, D).swapaxes(2, 3), lse.reshape(B, G, L, H // G).swapaxes(2, 3)
    return y.reshape(B, H, L, D), lse.reshape(B, H, L)
