"""Adds weight by weight in float32: what is below 2^-24 of the sum is never added, however much of it there is.

caught by: TestTask5TopP::test_a_long_flat_tail
"""

import mlx.core as mx
import numpy as np


def keep_top_p(weights: mx.array, top_p: mx.array) -> mx.array:
    sums = mx.array(np.cumsum(np.array(weights), axis=-1))
    before = mx.concatenate([mx.zeros_like(sums[:, :1]), sums[:, :-1]], axis=-1)
    return mx.where((before < top_p * sums[:, -1:]) | (mx.arange(weights.shape[-1]) == 0), weights, 0)
