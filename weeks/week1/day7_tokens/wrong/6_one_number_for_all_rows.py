"""Draws with the first row's number everywhere: every request in the batch gets the same luck.

caught by: TestTask6Pick::test_each_row_by_itself
"""

import mlx.core as mx


def pick(weights: mx.array, u: mx.array) -> mx.array:
    sums = mx.cumsum(weights, axis=-1)
    return mx.argmax(sums > u[0, 0] * sums[:, -1:], axis=-1)
