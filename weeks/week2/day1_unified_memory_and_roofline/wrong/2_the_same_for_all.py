"""One buffer for all threads: what the first one reads, the others find in the shared cache.

caught by: TestTask2Buffers::test_every_number_has_its_own_place
"""

import numpy as np

from tinymlx.bench.bandwidth import past_cache as shipped


def past_cache(cache: int, least: int, usable: int) -> int:
    return shipped(cache, least, usable)


def touched(nbytes: int, threads: int) -> list[np.ndarray]:
    part = np.ones(nbytes // 4 // threads + 1, np.float32)
    sizes = [nbytes // 4 // threads + (i < nbytes // 4 % threads) for i in range(threads)]
    return [part[:size] for size in sizes]
