"""Drops what does not divide evenly, and yet it is counted.

caught by: TestTask2Buffers::test_equal_parts_of_all_bytes
"""

import numpy as np

from tinymlx.bench.bandwidth import past_cache as shipped


def past_cache(cache: int, least: int, usable: int) -> int:
    return shipped(cache, least, usable)


def touched(nbytes: int, threads: int) -> list[np.ndarray]:
    each = nbytes // 4 // threads
    return [np.ones(each, np.float32) for _ in range(threads)]
