"""Divides by the new sum: the draw does that anyway, and min-p, which comes next, reads the weights as they are.

caught by: TestTask5TopP::test_the_set_reaches_top_p_and_no_more
"""

import mlx.core as mx


def keep_top_p(weights: mx.array, top_p: mx.array) -> mx.array:
    sums = mx.cumsum(weights, axis=-1)
    before = mx.concatenate([mx.zeros_like(sums[:, :1]), sums[:, :-1]], axis=-1)
    kept = mx.where((before < top_p * sums[:, -1:]) | (mx.arange(weights.shape[-1]) == 0), weights, 0)
    return kept / kept.sum(axis=-1, keepdims=True)
