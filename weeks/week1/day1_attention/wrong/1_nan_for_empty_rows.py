"""-inf - -inf is NaN: a query that may look nowhere poisons the layer.

caught by: TestTask1Softmax::test_row_of_nothing
"""

import mlx.core as mx


def softmax(scores: mx.array) -> tuple[mx.array, mx.array]:
    highest = scores.max(axis=-1, keepdims=True)
    exps = mx.exp(scores - highest)
    total = exps.sum(axis=-1, keepdims=True)
    return exps / total, (highest + mx.log(total)).squeeze(-1)
