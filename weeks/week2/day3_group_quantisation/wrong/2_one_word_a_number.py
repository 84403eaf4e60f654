"""Looks into the word where a number begins and nowhere else: with 3, 5 and 6 bits some lose their upper bits.

caught by: TestTask2Unpack::test_against_the_stream_of_bits
"""

import mlx.core as mx


def unpack(words: mx.array, bits: int) -> mx.array:
    start = mx.arange(0, 32 * words.shape[-1], bits, dtype=mx.uint32)
    return (words[..., start // 32] >> start % 32) & (2**bits - 1)
