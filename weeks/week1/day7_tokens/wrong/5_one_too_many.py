"""Goes on while the sum has not exceeded top_p: a set that reaches it exactly gets one more.

caught by: TestTask5TopP::test_the_set_reaches_top_p_and_no_more
"""

import mlx.core as mx


def keep_top_p(weights: mx.array, top_p: mx.array) -> mx.array:
    sums = mx.cumsum(weights, axis=-1)
    before = mx.cumsum(weights, axis=-1, inclusive=False)
    return mx.where(before <= top_p * sums[:, -1:], weights, 0)
