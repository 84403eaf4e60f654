"""Subtracts the maximum of the whole array: rows far below it underflow to nothing.

caught by: TestTask1Softmax::test_rows_far_apart
"""

import mlx.core as mx


def softmax(scores: mx.array) -> tuple[mx.array, mx.array]:
    highest = scores.max()
    exps = mx.exp(scores - highest)
    total = exps.sum(axis=-1, keepdims=True)
    return exps / mx.where(total == 0, 1.0, total), (highest + mx.log(total)).squeeze(-1)
