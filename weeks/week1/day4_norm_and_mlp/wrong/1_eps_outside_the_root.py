"""Adds eps to the root: beside a small x it is then a thousand times too small.

caught by: TestTask1RmsNorm::test_eps_is_under_the_root
"""

import mlx.core as mx


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    wide = x.astype(mx.float32)
    rms = mx.sqrt(mx.mean(wide * wide, axis=-1, keepdims=True))
    return weight * (wide / (rms + eps)).astype(x.dtype)
