"""Rounds up, past the limit.

caught by: TestTask2Buffers::test_whole_eight_mib
"""

from tinymlx.bench.bandwidth import MIB, touched  # noqa: F401


def past_cache(cache: int, least: int, usable: int) -> int:
    return -(-min(max(16 * cache, least), usable // 8) // (8 * MIB)) * (8 * MIB)
