"""Squares before it widens: float16 overflows at 256, and the row comes out as zeros.

caught by: TestTask1RmsNorm::test_squares_and_sums_in_float32
"""

import mlx.core as mx


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    inverse = mx.rsqrt(mx.mean((x * x).astype(mx.float32), axis=-1, keepdims=True) + eps)
    return weight * (x.astype(mx.float32) * inverse).astype(x.dtype)
