"""Unit length instead of unit root mean square: everything sqrt(K) too small, 32 times at K = 1024.

caught by: TestTask1RmsNorm::test_against_float64
"""

import mlx.core as mx


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    wide = x.astype(mx.float32)
    inverse = mx.rsqrt(mx.sum(wide * wide, axis=-1, keepdims=True) + eps)
    return weight * (wide * inverse).astype(x.dtype)
