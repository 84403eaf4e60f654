"""The same number for block and lane: within a block it is no longer uniform, and most lanes are never reached.

caught by: TestTask6Pick::test_frequencies
"""

import mlx.core as mx


def pick(weights: mx.array, u: mx.array) -> mx.array:
    rows, width = weights.shape
    size = min(128, width)
    blocks = weights.reshape(rows, -1, size)
    inside = mx.cumsum(blocks, axis=-1)
    sums = mx.cumsum(inside[..., -1], axis=-1)
    block = mx.argmax(sums > u[:, :1] * sums[:, -1:], axis=-1)
    lanes = mx.take_along_axis(inside, block[:, None, None], axis=1)[:, 0]
    return block * size + mx.argmax(lanes > u[:, :1] * lanes[:, -1:], axis=-1)
