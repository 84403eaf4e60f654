"""Adds up in x's dtype, as a first kernel does: in bfloat16 the sum of a thousand ones stops at 256.

caught by: TestTask1RmsNorm::test_squares_and_sums_in_float32
"""

import mlx.core as mx


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    total = mx.zeros(x.shape[:-1], x.dtype)
    for column in range(x.shape[-1]):
        total = total + x[..., column] * x[..., column]
    inverse = mx.rsqrt(total[..., None].astype(mx.float32) / x.shape[-1] + eps)
    return weight * (x.astype(mx.float32) * inverse).astype(x.dtype)
