"""A lower triangle by row and column: right for a whole prompt, and a decoding step sees only the first key.

caught by: TestTask2CausalMask::test_positions_not_indices
"""

import mlx.core as mx


def causal_mask(queries: mx.array, keys: mx.array, window: int | None = None) -> mx.array:
    B, L = queries.shape
    T = keys.shape[1]
    mask = mx.tri(L, T, dtype=mx.bool_)
    if window is not None:
        mask = mask & ~mx.tri(L, T, k=-window, dtype=mx.bool_)
    return mx.broadcast_to(mask, (B, 1, L, T))
