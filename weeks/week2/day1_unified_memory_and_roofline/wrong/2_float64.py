"""NumPy's usual numbers have eight bytes: twice the bytes that are counted move.

caught by: TestTask2Buffers::test_float32
"""

import numpy as np

from tinymlx.bench.bandwidth import past_cache as shipped


def past_cache(cache: int, least: int, usable: int) -> int:
    return shipped(cache, least, usable)


def touched(nbytes: int, threads: int) -> list[np.ndarray]:
    return np.array_split(np.ones(nbytes // 4), threads)
