"""Adds both times, as if nothing were computed while bytes arrive: floors up to twice too long, gaps that vanish.

caught by: TestTask1Floor::test_at_once
"""

from tinymlx.bench.roofline import Roof


def floor_s(nbytes: float, flops: float, roof: Roof) -> float:
    return nbytes / (roof.gb_s * 1e9) + flops / (roof.tflop_s * 1e12)
