"""Causality alone: the slot at the new token's own position is unfilled, and it is seen.

caught by: TestTask3AttentionMask::test_unfilled_slots
"""

import mlx.core as mx

from tinymlx import ops


def attention_mask(lengths: mx.array, slots: int, L: int, window: int | None = None) -> mx.array:
    new = lengths[:, None] + mx.arange(L)
    cached = mx.broadcast_to(mx.arange(slots), (lengths.shape[0], slots))
    return ops.causal_mask(new, mx.concatenate([cached, new], axis=1), window)
