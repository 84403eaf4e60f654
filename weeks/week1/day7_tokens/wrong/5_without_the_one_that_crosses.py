"""Keeps what lies wholly below the border: the set does not reach top_p, and the likeliest token alone may be too much.

caught by: TestTask5TopP::test_the_set_reaches_top_p_and_no_more
"""

import mlx.core as mx


def keep_top_p(weights: mx.array, top_p: mx.array) -> mx.array:
    sums = mx.cumsum(weights, axis=-1)
    rank = mx.arange(weights.shape[-1])
    return mx.where((sums <= top_p * sums[:, -1:]) | (rank == 0), weights, 0)
