"""The log-sum-exp of the shifted scores instead of the scores.

caught by: TestTask1Softmax::test_against_float64
"""

import mlx.core as mx


def softmax(scores: mx.array) -> tuple[mx.array, mx.array]:
    highest = scores.max(axis=-1, keepdims=True)
    exps = mx.exp(scores - mx.where(highest == -mx.inf, 0.0, highest))
    total = exps.sum(axis=-1, keepdims=True)
    return exps / mx.where(total == 0, 1.0, total), mx.log(total).squeeze(-1)
