"""Adds both times: as if no byte arrived while arithmetic goes on. Half of the roof at the ridge.

caught by: TestTask3Roof::test_where_they_meet
"""


def attainable(intensity: float, gb_s: float, tflop_s: float) -> float:
    return 1 / (1 / tflop_s + 1e3 / (gb_s * intensity))
