"""One root mean square for the whole array: a token's output then depends on its neighbours.

caught by: TestTask1RmsNorm::test_each_vector_by_itself
"""

import mlx.core as mx


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    wide = x.astype(mx.float32)
    inverse = mx.rsqrt(mx.mean(wide * wide) + eps)
    return weight * (wide * inverse).astype(x.dtype)
