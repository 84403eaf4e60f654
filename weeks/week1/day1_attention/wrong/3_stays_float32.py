"""Returns float32 for half-precision queries: the next layer then runs in float32, at twice the bytes.

caught by: TestTask3Attention::test_against_float64
"""

import mlx.core as mx

from tinymlx import ops


def scaled_dot_product_attention(
    q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    weights, lse = ops.softmax(ops.attention_scores(q, k, scale=scale, mask=mask))
    return weights @ v.astype(mx.float32), lse
