"""The test for filled slots runs over all columns, so the new tokens, which stand behind them, are hidden as well.

caught by: TestTask3AttentionMask::test_new_tokens_see_one_another
"""

import mlx.core as mx

from tinymlx import ops


def attention_mask(lengths: mx.array, slots: int, L: int, window: int | None = None) -> mx.array:
    new = lengths[:, None] + mx.arange(L)
    cached = mx.broadcast_to(mx.arange(slots), (lengths.shape[0], slots))
    mask = ops.causal_mask(new, mx.concatenate([cached, new], axis=1), window)
    filled = mx.arange(slots + L) < lengths[:, None]
    return mask & filled[:, None, None]
