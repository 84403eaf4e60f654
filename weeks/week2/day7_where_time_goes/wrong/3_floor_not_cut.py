"""Lets a floor stand that is longer than the measurement, and makes calls negative by it.

caught by: TestTask3Split::test_faster_than_the_floor
"""

from tinymlx.bench.profile import Split


def split(seconds: float, floor: float, calls: float) -> Split:
    calls = min(calls, seconds - floor)
    return Split(floor, calls, seconds - floor - calls)
