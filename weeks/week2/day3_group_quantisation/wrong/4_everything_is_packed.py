"""Forgets that a weight may be dense: the first one that is has no scales to multiply by.

caught by: TestTask4Dequantize::test_a_dense_weight_stays
"""

import mlx.core as mx

from tinymlx import ops
from tinymlx.ops import Linear


def dequantize(w: Linear) -> mx.array:
    codes = ops.unpack(w.weight, w.quantization.bits).reshape(*w.scales.shape, w.quantization.group_size)
    return (w.scales[..., None] * codes.astype(w.scales.dtype) + w.biases[..., None]).flatten(-2)
