"""Day 1.1: attention. Each function here replaces the product's function of the same name; the chapter is README.md beside it.

tinymlx learn check 1.1 --watch          grades this file whenever you save it
tinymlx learn run 1.1 --prompt "Hi"      answers with your functions inside the engine
"""

import mlx.core as mx

from tinymlx import (
    ops,
)  # while one task is graded, the other tasks' functions are the product's; in `run` all are yours

HOMES = {"softmax": "tinymlx.ops", "attention_scores": "tinymlx.ops", "scaled_dot_product_attention": "tinymlx.ops"}


def softmax(scores: mx.array) -> tuple[mx.array, mx.array]:
    """Scores to weights that sum to 1 along the last axis, and the logarithm of what they were divided by.

    >>> softmax(mx.log(mx.array([1.0, 3.0])))
    (array([0.25, 0.75], dtype=float32), array(1.38629, dtype=float32))

    scores: [..., T] float32. Returns [..., T] and the log-sum-exp [...]. A row of nothing but -inf gives zeros and -inf.
    """
    raise NotImplementedError("1.1 task 1: weights that sum to 1, and their log-sum-exp")


def attention_scores(q: mx.array, k: mx.array, *, scale: float, mask: mx.array | None = None) -> mx.array:
    """How well each query fits each key: scale * q k^T, and -inf where `mask` is False.

    q: [..., L, D]; k: [..., T, D]; mask: bool, broadcast to [..., L, T]. Returns [..., L, T] float32; leading axes broadcast.
    """
    raise NotImplementedError("1.1 task 2: scores of queries against keys")


def scaled_dot_product_attention(
    q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """softmax(scale * q k^T) v.

    q: [..., L, D]; k, v: [..., T, D]; mask: bool, broadcast to [..., L, T], True where a query may look; leading axes broadcast. Returns
    y [..., L, D] in q's dtype and the log-sum-exp of the scores [..., L] in float32. A query that may look nowhere gets zeros and -inf.
    """
    raise NotImplementedError("1.1 task 3: values mixed by their weights")
