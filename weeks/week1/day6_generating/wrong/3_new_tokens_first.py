"""Joins them the other way round: the mask hides new tokens and shows empty slots.

caught by: TestTask3PagedAttention::test_pages_come_first
"""

import mlx.core as mx

from tinymlx import ops


def paged_attention(
    q: mx.array, k_new: mx.array, v_new: mx.array, k_pages: mx.array, v_pages: mx.array, mask: mx.array, *, scale: float
) -> tuple[mx.array, mx.array]:
    keys = mx.concatenate([k_new, k_pages], axis=2)
    values = mx.concatenate([v_new, v_pages], axis=2)
    values = mx.where(mask.any(axis=2)[..., None], values, 0)
    return ops.grouped_query_attention(q, keys, values, scale=scale, mask=mask)
