"""New tokens stand in column slots, but not at position slots: a window then counts empty slots as text.

caught by: TestTask3AttentionMask::test_window_counts_positions
"""

import mlx.core as mx

from tinymlx import ops


def attention_mask(lengths: mx.array, slots: int, L: int, window: int | None = None) -> mx.array:
    B = lengths.shape[0]
    new = mx.broadcast_to(slots + mx.arange(L), (B, L))
    cached = mx.broadcast_to(mx.arange(slots), (B, slots))
    mask = ops.causal_mask(new, mx.concatenate([cached, new], axis=1), window)
    filled = mx.concatenate([cached < lengths[:, None], mx.ones((B, L), mx.bool_)], axis=1)
    return mask & filled[:, None, None]
