"""Numbers in groups with a scale and a bias each, and packed: 2, 3, 4, 5, 6 or 8 bits a number in words of 32."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.ops.linear import Linear


def pack(codes: mx.array, bits: int) -> mx.array:
    """codes: [..., K] uint32 below 2^bits, K a multiple of 32. Returns [..., K * bits / 32] uint32.

    >>> pack(mx.arange(32, dtype=mx.uint32) % 16, 4)      # 0x76543210, 0xfedcba98, ...
    array([1985229328, 4275878552, 1985229328, 4275878552], dtype=uint32)

    A row is one stream of bits, lowest first: number i begins at bit i * bits. With 3, 5 and 6 bits some numbers lie in two words.
    """
    *lead, K = codes.shape
    stream = (codes[..., None] >> mx.arange(bits, dtype=mx.uint32)) & 1
    words = stream.reshape(*lead, K * bits // 32, 32)
    return (words << mx.arange(32, dtype=mx.uint32)).sum(-1)


def unpack(words: mx.array, bits: int) -> mx.array:
    """words: [..., W] uint32 as `pack` makes them. Returns [..., W * 32 / bits] uint32."""
    if 32 % bits == 0:  # no number lies in two words
        return ((words[..., None] >> mx.arange(0, 32, bits, dtype=mx.uint32)) & (2**bits - 1)).flatten(-2)
    *lead, W = words.shape
    stream = (words[..., None] >> mx.arange(32, dtype=mx.uint32)) & 1
    codes = stream.reshape(*lead, W * 32 // bits, bits)
    return (codes << mx.arange(bits, dtype=mx.uint32)).sum(-1)


def quantize(w: mx.array, group_size: int, bits: int) -> tuple[mx.array, mx.array, mx.array]:
    """w: [..., K] finite, K a multiple of group_size and of 32. Returns packed [..., K * bits / 32], scales and biases [..., K / group_size].

    In the scale's steps, the bias is the end of the group that is further from 0, and 0 a whole number of steps from it. Computed in float32;
    scales and biases are rounded to w's dtype last. The same bits as mx.quantize on a CPU; on a GPU that rounds halves away from 0, and
    takes 0 for the upper end of a group of negative numbers.
    """
    groups = w.astype(mx.float32).reshape(*w.shape[:-1], -1, group_size)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    step = mx.maximum((high - low) / (2**bits - 1), 1e-7)
    from_below = mx.abs(low) > mx.abs(high)
    edge, step = mx.where(from_below, low, high), mx.where(from_below, step, -step)
    whole = mx.round(edge / step)
    scale = mx.where(whole == 0, step, edge / whole)
    bias = mx.where(whole == 0, 0, edge)
    codes = mx.clip(mx.round((groups - bias) / scale), 0, 2**bits - 1).astype(mx.uint32)
    return ops.pack(codes.reshape(w.shape), bits), scale.squeeze(-1).astype(w.dtype), bias.squeeze(-1).astype(w.dtype)


def dequantize(w: Linear) -> mx.array:
    """The dense weight [..., N, K] that a packed one stands for: scale * q + bias, group by group, in the dtype of the scales."""
    if w.quantization is None:
        return w.weight
    group_size, bits, mode = w.quantization
    if mode != "affine":
        return mx.dequantize(w.weight, w.scales, w.biases, group_size=group_size, bits=bits, mode=mode)
    codes = ops.unpack(w.weight, bits).reshape(*w.scales.shape, group_size)
    return (w.scales[..., None] * codes.astype(w.scales.dtype) + w.biases[..., None]).flatten(-2)
