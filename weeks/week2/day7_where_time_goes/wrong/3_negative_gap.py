"""A gap below 0 where calls hid behind bytes: a table that says less than nothing is unexplained.

caught by: TestTask3Split::test_calls_behind_bytes
"""

from tinymlx.bench.profile import Split


def split(seconds: float, floor: float, calls: float) -> Split:
    return Split(floor, calls, seconds - floor - calls)
