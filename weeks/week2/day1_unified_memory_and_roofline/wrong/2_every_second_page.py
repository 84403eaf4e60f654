"""Each thread takes every n-th number: all of them pull every cache line.

caught by: TestTask2Buffers::test_every_number_has_its_own_place
"""

import numpy as np

from tinymlx.bench.bandwidth import past_cache as shipped


def past_cache(cache: int, least: int, usable: int) -> int:
    return shipped(cache, least, usable)


def touched(nbytes: int, threads: int) -> list[np.ndarray]:
    whole = np.ones(nbytes // 4, np.float32)
    return [whole[i::threads] for i in range(threads)]
