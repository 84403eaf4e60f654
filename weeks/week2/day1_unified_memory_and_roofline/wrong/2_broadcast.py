"""One number that looks like many: nothing is read from memory at all.

caught by: TestTask2Buffers::test_every_number_has_its_own_place
"""

import numpy as np

from tinymlx.bench.bandwidth import past_cache as shipped


def past_cache(cache: int, least: int, usable: int) -> int:
    return shipped(cache, least, usable)


def touched(nbytes: int, threads: int) -> list[np.ndarray]:
    return np.array_split(np.broadcast_to(np.float32(1), nbytes // 4), threads)
