"""Shares of the whole instead of seconds.

caught by: TestTask3Split::test_all_three
"""

from tinymlx.bench.profile import Split


def split(seconds: float, floor: float, calls: float) -> Split:
    floor = min(floor, seconds)
    calls = min(calls, seconds - floor)
    return Split(floor / seconds, calls / seconds, 1 - (floor + calls) / seconds)
