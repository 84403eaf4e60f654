"""Trusts the mask: a weight of 0 times NaN is NaN.

caught by: TestTask3PagedAttention::test_nan_where_nobody_may_look
"""

import mlx.core as mx

from tinymlx import ops


def paged_attention(
    q: mx.array, k_new: mx.array, v_new: mx.array, k_pages: mx.array, v_pages: mx.array, mask: mx.array, *, scale: float
) -> tuple[mx.array, mx.array]:
    keys = mx.concatenate([k_pages, k_new], axis=2)
    values = mx.concatenate([v_pages, v_new], axis=2)
    return ops.grouped_query_attention(q, keys, values, scale=scale, mask=mask)
