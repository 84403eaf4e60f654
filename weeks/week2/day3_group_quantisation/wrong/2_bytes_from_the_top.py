"""Reads the bytes of each word as a big-endian machine stores them.

caught by: TestTask2Unpack::test_the_first_number_is_lowest
"""

import mlx.core as mx


def unpack(words: mx.array, bits: int) -> mx.array:
    *lead, W = words.shape
    swapped = words.view(mx.uint8).reshape(*lead, W, 4)[..., ::-1].flatten(-2)
    stream = (swapped[..., None] >> mx.arange(8, dtype=mx.uint8)) & 1
    return (stream.reshape(*lead, W * 32 // bits, bits).astype(mx.uint32) << mx.arange(bits, dtype=mx.uint32)).sum(-1)
