"""Near means near in either direction: with a window, tokens see the future they are to predict.

caught by: TestTask2CausalMask::test_window_hides_the_future_too
"""

import mlx.core as mx


def causal_mask(queries: mx.array, keys: mx.array, window: int | None = None) -> mx.array:
    distance = queries[:, None, :, None] - keys[:, None, None, :]
    return distance >= 0 if window is None else mx.abs(distance) < window
