"""Counts the sums before each weight and not after it: the index behind the one that was meant, whose weight may be 0.

caught by: TestTask6Pick::test_never_an_index_of_weight_zero
"""

import mlx.core as mx


def pick(weights: mx.array, u: mx.array) -> mx.array:
    sums = mx.cumsum(weights, axis=-1)
    before = mx.concatenate([mx.zeros_like(sums[:, :1]), sums[:, :-1]], axis=-1)
    index = mx.sum(before <= u[:, :1] * sums[:, -1:], axis=-1)
    return mx.minimum(index, weights.shape[-1] - 1)
