"""Calls first, and the floor gets what is left: it is the certain one of both.

caught by: TestTask3Split::test_calls_behind_bytes
"""

from tinymlx.bench.profile import Split


def split(seconds: float, floor: float, calls: float) -> Split:
    calls = min(calls, seconds)
    floor = min(floor, seconds - calls)
    return Split(floor, calls, seconds - floor - calls)
