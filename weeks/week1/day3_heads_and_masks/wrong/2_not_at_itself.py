"""Strictly before: the first token may look nowhere, and every other one misses itself.

caught by: TestTask2CausalMask::test_itself_and_before
"""

import mlx.core as mx


def causal_mask(queries: mx.array, keys: mx.array, window: int | None = None) -> mx.array:
    distance = queries[:, None, :, None] - keys[:, None, None, :]
    return distance > 0 if window is None else (distance > 0) & (distance < window)
