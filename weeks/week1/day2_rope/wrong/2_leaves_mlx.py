"""NumPy inside: right on a CPU, but a step that a GPU compiles cannot read values while it is traced.

caught by: TestTask2Rope::test_stays_in_mlx
"""

import mlx.core as mx
import numpy as np


def rope(x: mx.array, positions: mx.array, periods: mx.array, scale: float = 1.0) -> mx.array:
    angles = np.array(positions)[:, None, :, None] / np.array(periods)
    cos, sin = (
        mx.array((np.cos(angles) * scale).astype(np.float32)),
        mx.array((np.sin(angles) * scale).astype(np.float32)),
    )
    first, second = mx.split(x.astype(mx.float32), 2, axis=-1)
    turned = mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
