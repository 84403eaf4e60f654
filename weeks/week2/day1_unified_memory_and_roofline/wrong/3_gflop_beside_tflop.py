"""Compares GFLOP/s with TFLOP/s: everything seems bound by arithmetic.

caught by: TestTask3Roof::test_the_slope
"""


def attainable(intensity: float, gb_s: float, tflop_s: float) -> float:
    return min(tflop_s, gb_s * intensity)
