"""One running sum over the whole row, weight by weight in float32: the tail of a vocabulary is never drawn.

caught by: TestTask6Pick::test_a_long_flat_tail
"""

import mlx.core as mx
import numpy as np


def pick(weights: mx.array, u: mx.array) -> mx.array:
    sums = mx.array(np.cumsum(np.array(weights), axis=-1))
    return mx.argmax(sums > u[:, :1] * sums[:, -1:], axis=-1)
