"""Keeps only what every query sees: in a chunk each token loses what those before it cannot see, itself included.

caught by: TestTask3PagedAttention::test_a_slot_that_only_some_queries_see
"""

import mlx.core as mx

from tinymlx import ops


def paged_attention(
    q: mx.array, k_new: mx.array, v_new: mx.array, k_pages: mx.array, v_pages: mx.array, mask: mx.array, *, scale: float
) -> tuple[mx.array, mx.array]:
    keys = mx.concatenate([k_pages, k_new], axis=2)
    values = mx.concatenate([v_pages, v_new], axis=2)
    values = mx.where(mask.all(axis=2)[..., None], values, 0)
    return ops.grouped_query_attention(q, keys, values, scale=scale, mask=mask)
