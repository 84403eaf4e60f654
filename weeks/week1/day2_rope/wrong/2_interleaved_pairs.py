"""Pairs (2i, 2i + 1), as the paper draws them: a Hugging Face checkpoint then answers gibberish after some tokens.

caught by: TestTask2Rope::test_pairs_are_halves
"""

import mlx.core as mx


def rope(x: mx.array, positions: mx.array, periods: mx.array, scale: float = 1.0) -> mx.array:
    angles = positions[:, None, :, None].astype(mx.float32) / periods
    cos, sin = mx.cos(angles) * scale, mx.sin(angles) * scale
    even, odd = x[..., 0::2].astype(mx.float32), x[..., 1::2].astype(mx.float32)
    turned = mx.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)
