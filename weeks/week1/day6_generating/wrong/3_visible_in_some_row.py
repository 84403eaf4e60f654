"""Asks whether anybody in the batch sees a slot: a longer neighbour brings the NaN back.

caught by: TestTask3PagedAttention::test_each_row_hides_its_own_slots
"""

import mlx.core as mx

from tinymlx import ops


def paged_attention(
    q: mx.array, k_new: mx.array, v_new: mx.array, k_pages: mx.array, v_pages: mx.array, mask: mx.array, *, scale: float
) -> tuple[mx.array, mx.array]:
    keys = mx.concatenate([k_pages, k_new], axis=2)
    values = mx.concatenate([v_pages, v_new], axis=2)
    values = mx.where(mask.any(axis=(0, 2), keepdims=True).swapaxes(2, 3), values, 0)
    return ops.grouped_query_attention(q, keys, values, scale=scale, mask=mask)
