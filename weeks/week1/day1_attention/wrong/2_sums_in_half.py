"""Multiplies in the dtype of q and k: float16 sums keep 11 bits.

caught by: TestTask2Scores::test_against_float64
"""

import mlx.core as mx


def attention_scores(q: mx.array, k: mx.array, *, scale: float, mask: mx.array | None = None) -> mx.array:
    scores = scale * (q @ k.swapaxes(-1, -2)).astype(mx.float32)
    return scores if mask is None else mx.where(mask, scores, -mx.inf)
