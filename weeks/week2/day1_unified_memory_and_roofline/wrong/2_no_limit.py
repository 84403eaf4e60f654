"""Takes what caches ask for whatever the machine has: it swaps.

caught by: TestTask2Buffers::test_spares_the_machine
"""

from tinymlx.bench.bandwidth import MIB, touched  # noqa: F401


def past_cache(cache: int, least: int, usable: int) -> int:
    return max(16 * cache, least) // (8 * MIB) * (8 * MIB)
