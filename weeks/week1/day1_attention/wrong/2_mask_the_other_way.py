"""Hides what may be seen: in some libraries True means masked.

caught by: TestTask2Scores::test_mask
"""

import mlx.core as mx


def attention_scores(q: mx.array, k: mx.array, *, scale: float, mask: mx.array | None = None) -> mx.array:
    scores = scale * (q.astype(mx.float32) @ k.astype(mx.float32).swapaxes(-1, -2))
    return scores if mask is None else mx.where(mask, -mx.inf, scores)
