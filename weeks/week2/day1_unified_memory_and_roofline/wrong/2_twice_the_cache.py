"""Twice the cache: half of it may still be there when the next trial begins, and the rate is the cache's.

caught by: TestTask2Buffers::test_sixteen_caches
"""

from tinymlx.bench.bandwidth import MIB, touched  # noqa: F401


def past_cache(cache: int, least: int, usable: int) -> int:
    return min(max(2 * cache, least), usable // 8) // (8 * MIB) * (8 * MIB)
