"""Finds the ends over the row and hands every group the same scale: one outlier then costs a thousand weights.

caught by: TestTask3Quantize::test_an_outlier_stays_in_its_group
"""

import mlx.core as mx

from tinymlx import ops


def quantize(w: mx.array, group_size: int, bits: int) -> tuple[mx.array, mx.array, mx.array]:
    groups = w.astype(mx.float32).reshape(*w.shape[:-1], -1, group_size)
    low, high = (
        mx.broadcast_to(f(groups, axis=(-2, -1), keepdims=True), (*groups.shape[:-1], 1)) for f in (mx.min, mx.max)
    )
    step = mx.maximum((high - low) / (2**bits - 1), 1e-7)
    from_below = mx.abs(low) > mx.abs(high)
    edge, step = mx.where(from_below, low, high), mx.where(from_below, step, -step)
    whole = mx.round(edge / step)
    scale = mx.where(whole == 0, step, edge / whole)
    bias = mx.where(whole == 0, 0, edge)
    codes = mx.clip(mx.round((groups - bias) / scale), 0, 2**bits - 1).astype(mx.uint32)
    return ops.pack(codes.reshape(w.shape), bits), scale.squeeze(-1).astype(w.dtype), bias.squeeze(-1).astype(w.dtype)
