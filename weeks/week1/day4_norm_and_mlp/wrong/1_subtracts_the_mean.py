"""Layer norm: it takes away each vector's mean, which the weights were not trained to miss.

caught by: TestTask1RmsNorm::test_the_mean_is_not_subtracted
"""

import mlx.core as mx


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    wide = x.astype(mx.float32)
    wide = wide - mx.mean(wide, axis=-1, keepdims=True)
    inverse = mx.rsqrt(mx.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return weight * (wide * inverse).astype(x.dtype)
