""".T turns every axis round, not just the last two.

caught by: TestTask2Scores::test_leading_axes_broadcast
"""

import mlx.core as mx


def attention_scores(q: mx.array, k: mx.array, *, scale: float, mask: mx.array | None = None) -> mx.array:
    scores = scale * (q.astype(mx.float32) @ k.astype(mx.float32).T)
    return scores if mask is None else mx.where(mask, scores, -mx.inf)
