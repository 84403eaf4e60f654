"""Shifts signed integers: where the number on top has its highest bit, the word comes out negative.

caught by: TestTask1Pack::test_the_highest_bit_of_a_word
"""

import mlx.core as mx


def pack(codes: mx.array, bits: int) -> mx.array:
    *lead, K = codes.shape
    stream = (codes[..., None].astype(mx.int32) >> mx.arange(bits)) & 1
    words = stream.reshape(*lead, K * bits // 32, 32)
    return (words << mx.arange(32)).sum(-1)
