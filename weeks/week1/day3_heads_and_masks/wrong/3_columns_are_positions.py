"""Numbers all columns 0, 1, 2, ... as if no slot were empty: new tokens miss themselves and see empty slots instead.

caught by: TestTask3AttentionMask::test_new_tokens_see_one_another
"""

import mlx.core as mx

from tinymlx import ops


def attention_mask(lengths: mx.array, slots: int, L: int, window: int | None = None) -> mx.array:
    new = lengths[:, None] + mx.arange(L)
    keys = mx.broadcast_to(mx.arange(slots + L), (lengths.shape[0], slots + L))
    return ops.causal_mask(new, keys, window)
