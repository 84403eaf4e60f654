"""Counts the operations of the matrices alone, so the intensity at a long context is too low.

caught by: TestTask5Prediction::test_a_long_context
"""

from tinymlx.bench.roofline import CONTEXT, Roof, Work
from tinymlx.memory import sizes
from tinymlx.memory.sizes import Size


def most_tokens_per_s(read_bytes: float, gb_s: float) -> float:
    return gb_s * 1e9 / read_bytes


def decode(size: Size, packing: str, roof: Roof, float_bytes: int, context: int = CONTEXT) -> Work:
    read = sizes.bytes_per_token(size, packing, float_bytes) + context * sizes.kv_bytes_per_token(size, float_bytes)
    flops = sizes.flops_per_token(size, 0)
    intensity = flops / read
    bound_by = "memory" if intensity < roof.ridge else "arithmetic"
    return Work(size.name, "decode", intensity, roof.at(intensity) * 1e12 / flops, bound_by)
