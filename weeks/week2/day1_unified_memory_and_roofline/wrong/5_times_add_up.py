"""Adds the time of bytes and the time of operations, which run at once.

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
    seconds = read / (roof.gb_s * 1e9) + flops / (roof.tflop_s * 1e12)
    bound_by = "memory" if flops / read < roof.ridge else "arithmetic"
    return Work(size.name, "decode", flops / read, 1 / seconds, bound_by)
