"""Number i goes into word i % W, as some formats interleave: right for a loop over words, wrong for the layout.

caught by: TestTask1Pack::test_against_the_stream_of_bits
"""

import mlx.core as mx


def pack(codes: mx.array, bits: int) -> mx.array:
    *lead, K = codes.shape
    W = K * bits // 32
    stream = (codes[..., None] >> mx.arange(bits, dtype=mx.uint32)) & 1
    words = stream.reshape(*lead, 32, W).swapaxes(-1, -2)
    return (words << mx.arange(32, dtype=mx.uint32)).sum(-1)
