"""The first number chooses among blocks as if all weighed the same.

caught by: TestTask6Pick::test_a_few_that_are_likely
"""

import mlx.core as mx


def pick(weights: mx.array, u: mx.array) -> mx.array:
    rows, width = weights.shape
    size = min(128, width)
    blocks = weights.reshape(rows, -1, size)
    block = (u[:, 0] * blocks.shape[1]).astype(mx.int32)
    lanes = mx.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    sums = mx.cumsum(lanes, axis=-1)
    return block * size + mx.argmax(sums > u[:, 1:] * sums[:, -1:], axis=-1)
