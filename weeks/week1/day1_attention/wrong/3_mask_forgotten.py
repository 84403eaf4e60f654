"""Takes the mask and does not use it.

caught by: TestTask3Attention::test_mask
"""

import mlx.core as mx

from tinymlx import ops


def scaled_dot_product_attention(
    q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    weights, lse = ops.softmax(ops.attention_scores(q, k, scale=scale))
    return (weights @ v.astype(mx.float32)).astype(q.dtype), lse
