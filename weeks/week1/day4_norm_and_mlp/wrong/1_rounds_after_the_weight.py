"""Multiplies in float32 and rounds once: more exact, and no longer the bits of the reference.

caught by: TestTask1RmsNorm::test_rounds_before_the_weight
"""

import mlx.core as mx


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    wide = x.astype(mx.float32)
    inverse = mx.rsqrt(mx.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (weight.astype(mx.float32) * (wide * inverse)).astype(x.dtype)
