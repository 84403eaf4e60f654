"""Replaces every NaN by 0: a broken model then talks nonsense instead of saying that it is broken.

caught by: TestTask3PagedAttention::test_a_visible_nan_is_not_hidden
"""

import mlx.core as mx

from tinymlx import ops


def paged_attention(
    q: mx.array, k_new: mx.array, v_new: mx.array, k_pages: mx.array, v_pages: mx.array, mask: mx.array, *, scale: float
) -> tuple[mx.array, mx.array]:
    keys = mx.concatenate([k_pages, k_new], axis=2)
    values = mx.concatenate([v_pages, v_new], axis=2)
    values = mx.where(mx.isfinite(values), values, 0)
    return ops.grouped_query_attention(q, keys, values, scale=scale, mask=mask)
