"""Compares with top_p itself: the weights are not scaled to 1, so far too few stay, or all.

caught by: TestTask5TopP::test_weights_need_not_sum_to_1
"""

import mlx.core as mx


def keep_top_p(weights: mx.array, top_p: mx.array) -> mx.array:
    sums = mx.cumsum(weights, axis=-1)
    before = mx.concatenate([mx.zeros_like(sums[:, :1]), sums[:, :-1]], axis=-1)
    return mx.where((before < top_p) | (mx.arange(weights.shape[-1]) == 0), weights, 0)
