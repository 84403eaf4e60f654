"""Bytes alone: prefill seems a hundred times too slow for its floor.

caught by: TestTask1Floor::test_arithmetic
"""

from tinymlx.bench.roofline import Roof


def floor_s(nbytes: float, flops: float, roof: Roof) -> float:
    return nbytes / (roof.gb_s * 1e9)
