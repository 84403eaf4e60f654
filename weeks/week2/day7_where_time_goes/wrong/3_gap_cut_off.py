"""Cuts the gap at 0 and leaves the others: the parts add up to more than was measured.

caught by: TestTask3Split::test_calls_behind_bytes
"""

from tinymlx.bench.profile import Split


def split(seconds: float, floor: float, calls: float) -> Split:
    return Split(floor, calls, max(0.0, seconds - floor - calls))
