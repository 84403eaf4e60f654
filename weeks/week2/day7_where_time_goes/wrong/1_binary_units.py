"""Takes GB for 2^30 bytes: a floor 7 % too low.

caught by: TestTask1Floor::test_bytes
"""

from tinymlx.bench.roofline import Roof


def floor_s(nbytes: float, flops: float, roof: Roof) -> float:
    return max(nbytes / (roof.gb_s * 2**30), flops / (roof.tflop_s * 1e12))
