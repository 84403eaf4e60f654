"""Shrinks floor and calls in proportion.

caught by: TestTask3Split::test_calls_behind_bytes
"""

from tinymlx.bench.profile import Split


def split(seconds: float, floor: float, calls: float) -> Split:
    scale = min(1.0, seconds / (floor + calls)) if floor + calls else 1.0
    floor, calls = floor * scale, calls * scale
    return Split(floor, calls, seconds - floor - calls)
