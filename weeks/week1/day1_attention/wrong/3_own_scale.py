"""Scales by 1/sqrt(D) as the paper does, and forgets the argument (YaRN and other models change it).

caught by: TestTask3Attention::test_the_scale_is_given
"""

import mlx.core as mx

from tinymlx import ops


def scaled_dot_product_attention(
    q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    weights, lse = ops.softmax(ops.attention_scores(q, k, scale=q.shape[-1] ** -0.5, mask=mask))
    return (weights @ v.astype(mx.float32)).astype(q.dtype), lse
