"""The formula as it stands in papers: exp overflows at 89.

caught by: TestTask1Softmax::test_large_scores
"""

import mlx.core as mx


def softmax(scores: mx.array) -> tuple[mx.array, mx.array]:
    exps = mx.exp(scores)
    total = exps.sum(axis=-1, keepdims=True)
    return exps / mx.where(total == 0, 1.0, total), mx.log(total).squeeze(-1)
