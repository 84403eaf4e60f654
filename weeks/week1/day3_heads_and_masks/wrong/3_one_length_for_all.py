"""The longest row's length for every row: shorter rows see slots that another request filled.

caught by: TestTask3AttentionMask::test_ragged_rows
"""

import mlx.core as mx

from tinymlx import ops


def attention_mask(lengths: mx.array, slots: int, L: int, window: int | None = None) -> mx.array:
    B = lengths.shape[0]
    longest = mx.broadcast_to(lengths.max(), (B,))
    new = longest[:, None] + mx.arange(L)
    cached = mx.broadcast_to(mx.arange(slots), (B, slots))
    mask = ops.causal_mask(new, mx.concatenate([cached, new], axis=1), window)
    filled = mx.concatenate([cached < longest[:, None], mx.ones((B, L), mx.bool_)], axis=1)
    return mask & filled[:, None, None]
