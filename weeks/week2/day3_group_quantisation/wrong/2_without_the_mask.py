"""Shifts each number down and leaves above it what belongs to its neighbours.

caught by: TestTask2Unpack::test_nothing_of_the_neighbours
"""

import mlx.core as mx


def unpack(words: mx.array, bits: int) -> mx.array:
    *lead, W = words.shape
    if 32 % bits == 0:
        return (words[..., None] >> mx.arange(0, 32, bits, dtype=mx.uint32)).flatten(-2)
    stream = (words[..., None] >> mx.arange(32, dtype=mx.uint32)) & 1
    return (stream.reshape(*lead, W * 32 // bits, bits) << mx.arange(bits, dtype=mx.uint32)).sum(-1)
