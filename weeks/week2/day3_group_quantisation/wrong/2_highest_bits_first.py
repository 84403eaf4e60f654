"""Takes the first number from the top of the word: a row's numbers come in groups of eight backwards.

caught by: TestTask2Unpack::test_the_first_number_is_lowest
"""

import mlx.core as mx


def unpack(words: mx.array, bits: int) -> mx.array:
    *lead, W = words.shape
    stream = (words[..., None] >> mx.arange(31, -1, -1, dtype=mx.uint32)) & 1
    return (stream.reshape(*lead, W * 32 // bits, bits) << mx.arange(bits - 1, -1, -1, dtype=mx.uint32)).sum(-1)
