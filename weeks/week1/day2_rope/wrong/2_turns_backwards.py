"""The other direction. Queries and keys agree with each other, so only distances change their sign: before becomes after.

caught by: TestTask2Rope::test_against_float64
"""

import mlx.core as mx


def rope(x: mx.array, positions: mx.array, periods: mx.array, scale: float = 1.0) -> mx.array:
    angles = positions[:, None, :, None].astype(mx.float32) / periods
    cos, sin = mx.cos(angles) * scale, mx.sin(angles) * scale
    first, second = mx.split(x.astype(mx.float32), 2, axis=-1)
    turned = mx.concatenate([first * cos + second * sin, second * cos - first * sin], axis=-1)
    return turned.astype(x.dtype)
