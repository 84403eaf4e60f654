"""Divides by 2^bits: between 16 numbers lie 15 steps, and the far end of each group is never reached.

caught by: TestTask3Quantize::test_against_numpy
"""

import mlx.core as mx

from tinymlx import ops


def quantize(w: mx.array, group_size: int, bits: int) -> tuple[mx.array, mx.array, mx.array]:
    groups = w.astype(mx.float32).reshape(*w.shape[:-1], -1, group_size)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    step = mx.maximum((high - low) / 2**bits, 1e-7)
    from_below = mx.abs(low) > mx.abs(high)
    edge, step = mx.where(from_below, low, high), mx.where(from_below, step, -step)
    whole = mx.round(edge / step)
    scale = mx.where(whole == 0, step, edge / whole)
    bias = mx.where(whole == 0, 0, edge)
    codes = mx.clip(mx.round((groups - bias) / scale), 0, 2**bits - 1).astype(mx.uint32)
    return ops.pack(codes.reshape(w.shape), bits), scale.squeeze(-1).astype(w.dtype), bias.squeeze(-1).astype(w.dtype)
