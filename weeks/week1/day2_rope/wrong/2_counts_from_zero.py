"""Ignores `positions`: right in the first prefill, wrong for every token decoded after it.

caught by: TestTask2Rope::test_ragged_positions
"""

import mlx.core as mx


def rope(x: mx.array, positions: mx.array, periods: mx.array, scale: float = 1.0) -> mx.array:
    angles = mx.arange(x.shape[2]).astype(mx.float32)[:, None] / periods
    cos, sin = mx.cos(angles) * scale, mx.sin(angles) * scale
    first, second = mx.split(x.astype(mx.float32), 2, axis=-1)
    turned = mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
