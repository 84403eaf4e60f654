"""Packs 32 // bits numbers a word and starts the next one afresh: with 3, 5 and 6 bits two bits of each word stay empty.

caught by: TestTask1Pack::test_against_the_stream_of_bits
"""

import mlx.core as mx


def pack(codes: mx.array, bits: int) -> mx.array:
    *lead, K = codes.shape
    a_word = 32 // bits
    codes = mx.pad(codes, [(0, 0)] * len(lead) + [(0, -K % a_word)]).reshape(*lead, -1, a_word)
    return (codes << mx.arange(0, a_word * bits, bits, dtype=mx.uint32)).sum(-1)[..., : K * bits // 32]
