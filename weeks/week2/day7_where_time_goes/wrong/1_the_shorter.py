"""The shorter of both: the other one has to be done as well.

caught by: TestTask1Floor::test_bytes
"""

from tinymlx.bench.roofline import Roof


def floor_s(nbytes: float, flops: float, roof: Roof) -> float:
    return min(nbytes / (roof.gb_s * 1e9), flops / (roof.tflop_s * 1e12))
