"""np.zeros reserves and does not write: every page is the system's one page of zeros, and a read is a cache's.

caught by: TestTask2Buffers::test_everything_was_written
"""

import numpy as np

from tinymlx.bench.bandwidth import past_cache as shipped


def past_cache(cache: int, least: int, usable: int) -> int:
    return shipped(cache, least, usable)


def touched(nbytes: int, threads: int) -> list[np.ndarray]:
    return np.array_split(np.zeros(nbytes // 4, np.float32), threads)
