"""Returns float32 for half-precision input: every matmul after it then reads and computes in float32.

caught by: TestTask1RmsNorm::test_against_float64
"""

import mlx.core as mx


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    wide = x.astype(mx.float32)
    return weight.astype(mx.float32) * (wide * mx.rsqrt(mx.mean(wide * wide, axis=-1, keepdims=True) + eps))
