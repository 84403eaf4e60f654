"""<= window: itself and `window` more. A cache that keeps only `window` tokens lacks the last one.

caught by: TestTask2CausalMask::test_window_counts_itself
"""

import mlx.core as mx


def causal_mask(queries: mx.array, keys: mx.array, window: int | None = None) -> mx.array:
    distance = queries[:, None, :, None] - keys[:, None, None, :]
    return distance >= 0 if window is None else (distance >= 0) & (distance <= window)
