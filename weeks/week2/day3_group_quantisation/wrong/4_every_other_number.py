"""Tiles the scales instead of repeating each: number k gets the scale of group k % groups.

caught by: TestTask4Dequantize::test_neighbours_share_a_scale
"""

import mlx.core as mx

from tinymlx import ops
from tinymlx.ops import Linear


def dequantize(w: Linear) -> mx.array:
    if w.quantization is None:
        return w.weight
    group_size, bits, mode = w.quantization
    if mode != "affine":
        return mx.dequantize(w.weight, w.scales, w.biases, group_size=group_size, bits=bits, mode=mode)
    codes = ops.unpack(w.weight, bits).astype(w.scales.dtype)
    times = [1] * (codes.ndim - 1) + [group_size]
    return mx.tile(w.scales, times) * codes + mx.tile(w.biases, times)
