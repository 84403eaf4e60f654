"""Decoding is bound by memory, it says, whatever the arithmetic: on a CPU with a slow BLAS it is not.

caught by: TestTask5Prediction::test_slow_arithmetic
"""

from tinymlx.bench.roofline import CONTEXT, Roof, Work
from tinymlx.memory import sizes
from tinymlx.memory.sizes import Size


def most_tokens_per_s(read_bytes: float, gb_s: float) -> float:
    return gb_s * 1e9 / read_bytes


def decode(size: Size, packing: str, roof: Roof, float_bytes: int, context: int = CONTEXT) -> Work:
    read = sizes.bytes_per_token(size, packing, float_bytes) + context * sizes.kv_bytes_per_token(size, float_bytes)
    flops = sizes.flops_per_token(size, context)
    return Work(size.name, "decode", flops / read, roof.gb_s * 1e9 / read, "memory")
