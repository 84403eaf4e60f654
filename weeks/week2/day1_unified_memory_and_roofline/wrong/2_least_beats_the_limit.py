"""Lets `least` exceed what may be used.

caught by: TestTask2Buffers::test_spares_the_machine
"""

from tinymlx.bench.bandwidth import MIB, touched  # noqa: F401


def past_cache(cache: int, least: int, usable: int) -> int:
    return max(min(16 * cache, usable // 8), least) // (8 * MIB) * (8 * MIB)
