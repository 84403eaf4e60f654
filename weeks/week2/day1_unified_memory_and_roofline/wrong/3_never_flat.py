"""Bandwidth alone: arithmetic has no limit.

caught by: TestTask3Roof::test_the_flat_part
"""


def attainable(intensity: float, gb_s: float, tflop_s: float) -> float:
    return gb_s * intensity / 1e3
