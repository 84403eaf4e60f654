"""The first number goes to the top of the word, as one writes it: every kernel then reads its eight numbers backwards.

caught by: TestTask1Pack::test_the_first_number_is_lowest
"""

import mlx.core as mx


def pack(codes: mx.array, bits: int) -> mx.array:
    *lead, K = codes.shape
    stream = (codes[..., None] >> mx.arange(bits - 1, -1, -1, dtype=mx.uint32)) & 1
    words = stream.reshape(*lead, K * bits // 32, 32)
    return (words << mx.arange(31, -1, -1, dtype=mx.uint32)).sum(-1)
