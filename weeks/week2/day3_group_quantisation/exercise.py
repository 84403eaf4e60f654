"""Day 2.3: group quantisation. Each function here replaces the product's function of the same name; the chapter is README.md beside it.

tinymlx learn check 2.3 --watch          grades this file whenever you save it
tinymlx learn run 2.3 --prompt "Hi"      answers with your functions inside the engine
"""

import mlx.core as mx

from tinymlx import ops  # the product's: ops.pack and ops.unpack are yours as soon as yours are graded or run
from tinymlx.ops import Linear

HOMES = {"pack": "tinymlx.ops", "unpack": "tinymlx.ops", "quantize": "tinymlx.ops", "dequantize": "tinymlx.ops"}


def pack(codes: mx.array, bits: int) -> mx.array:
    """codes: [..., K] uint32 below 2^bits, K a multiple of 32. Returns [..., K * bits / 32] uint32.

    >>> pack(mx.arange(32, dtype=mx.uint32) % 16, 4)      # 0x76543210, 0xfedcba98, ...
    array([1985229328, 4275878552, 1985229328, 4275878552], dtype=uint32)

    bits is 2, 3, 4, 5, 6 or 8. A row is one stream of bits, lowest first: number i begins at bit i * bits. With 3, 5 and 6 bits some
    numbers lie in two words.
    """
    raise NotImplementedError("2.3 task 1: numbers into words")


def unpack(words: mx.array, bits: int) -> mx.array:
    """words: [..., W] uint32 as `pack` makes them. Returns [..., W * 32 / bits] uint32.

    >>> unpack(mx.array([0x76543210], mx.uint32), 4)
    array([0, 1, 2, ..., 5, 6, 7], dtype=uint32)

    The engine calls it for every weight of every token. With 2, 4 and 8 bits no number lies in two words, and one shift and one mask do.
    """
    raise NotImplementedError("2.3 task 2: words into numbers")


def quantize(w: mx.array, group_size: int, bits: int) -> tuple[mx.array, mx.array, mx.array]:
    """w: [..., K] finite, K a multiple of group_size and of 32. Returns packed [..., K * bits / 32], scales and biases [..., K / group_size].

    >>> packed, scale, bias = quantize(mx.arange(32, dtype=mx.float32) / 2 - 4, 32, 4)      # from -4 to 11.5
    >>> scale, bias                                                                         # -11.5 / 11: 0 is 11 steps from the edge
    (array([-1.04545], dtype=float32), array([11.5], dtype=float32))

    In float32, in the order of the chapter; scales and biases are rounded to w's dtype last. The codes are packed by `ops.pack`.
    """
    raise NotImplementedError("2.3 task 3: each group to a scale, a bias and small whole numbers")


def dequantize(w: Linear) -> mx.array:
    """The dense weight [..., N, K] that a packed one stands for: scale * q + bias, group by group, in the dtype of the scales.

    w.weight: [..., N, K * bits / 32]; w.scales, w.biases: [..., N, K / group_size]; w.quantization: (group_size, bits, mode), or None for a
    dense weight, which is returned as it is. A mode other than "affine" is left to mx.dequantize, which takes mode=. Takes `ops.unpack`.
    """
    raise NotImplementedError("2.3 task 4: scale * q + bias, group by group")
