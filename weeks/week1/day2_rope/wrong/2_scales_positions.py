"""Takes `scale` for that of mx.fast.rope, which stretches positions. YaRN multiplies queries and keys.

caught by: TestTask2Rope::test_scale
"""

import mlx.core as mx


def rope(x: mx.array, positions: mx.array, periods: mx.array, scale: float = 1.0) -> mx.array:
    angles = positions[:, None, :, None].astype(mx.float32) * scale / periods
    cos, sin = mx.cos(angles), mx.sin(angles)
    first, second = mx.split(x.astype(mx.float32), 2, axis=-1)
    turned = mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
