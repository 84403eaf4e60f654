"""Goes through operations a byte, and divides by bytes that an operation without weights has not.

caught by: TestTask1Floor::test_nothing_to_do
"""

from tinymlx.bench.roofline import Roof


def floor_s(nbytes: float, flops: float, roof: Roof) -> float:
    return flops / (roof.at(flops / nbytes) * 1e12)
