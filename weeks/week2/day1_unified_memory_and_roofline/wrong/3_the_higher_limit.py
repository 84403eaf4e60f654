"""The higher of two limits: no work passes the lower one.

caught by: TestTask3Roof::test_the_slope
"""


def attainable(intensity: float, gb_s: float, tflop_s: float) -> float:
    return max(tflop_s, gb_s * intensity / 1e3)
