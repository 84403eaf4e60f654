"""The smaller of both wishes: with a small cache the buffer is small, a trial too short for the clock.

caught by: TestTask2Buffers::test_not_too_small
"""

from tinymlx.bench.bandwidth import MIB, touched  # noqa: F401


def past_cache(cache: int, least: int, usable: int) -> int:
    return min(16 * cache, least, usable // 8) // (8 * MIB) * (8 * MIB)
