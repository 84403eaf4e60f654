"""Makes the angles in x's dtype: in bfloat16 whole runs of tokens share one position.

caught by: TestTask2Rope::test_large_positions
"""

import mlx.core as mx


def rope(x: mx.array, positions: mx.array, periods: mx.array, scale: float = 1.0) -> mx.array:
    angles = positions[:, None, :, None].astype(x.dtype) / periods.astype(x.dtype)
    angles = angles.astype(mx.float32)
    cos, sin = mx.cos(angles) * scale, mx.sin(angles) * scale
    first, second = mx.split(x.astype(mx.float32), 2, axis=-1)
    turned = mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
