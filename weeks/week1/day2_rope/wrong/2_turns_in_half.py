"""Rounds cos and sin to x's dtype and multiplies in it: four roundings where one is enough.

caught by: TestTask2Rope::test_against_float64
"""

import mlx.core as mx


def rope(x: mx.array, positions: mx.array, periods: mx.array, scale: float = 1.0) -> mx.array:
    angles = positions[:, None, :, None].astype(mx.float32) / periods
    cos, sin = (mx.cos(angles) * scale).astype(x.dtype), (mx.sin(angles) * scale).astype(x.dtype)
    first, second = mx.split(x, 2, axis=-1)
    return mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
