"""The textbook's way, from the minimum to the maximum: 0 lies between two steps, and every masked weight leaks.

caught by: TestTask3Quantize::test_zero_is_one_of_the_numbers
"""

import mlx.core as mx

from tinymlx import ops


def quantize(w: mx.array, group_size: int, bits: int) -> tuple[mx.array, mx.array, mx.array]:
    groups = w.astype(mx.float32).reshape(*w.shape[:-1], -1, group_size)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    scale = mx.maximum((high - low) / (2**bits - 1), 1e-7)
    codes = mx.clip(mx.round((groups - low) / scale), 0, 2**bits - 1).astype(mx.uint32)
    return ops.pack(codes.reshape(w.shape), bits), scale.squeeze(-1).astype(w.dtype), low.squeeze(-1).astype(w.dtype)
