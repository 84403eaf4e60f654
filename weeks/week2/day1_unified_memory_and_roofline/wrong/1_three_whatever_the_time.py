"""Runs three trials and leaves: the median of three short ones is noise.

caught by: TestTask1Measure::test_as_long_as_it_was_asked_to
"""

import statistics
import time
from collections.abc import Callable

from tinymlx.bench.bandwidth import FEWEST_TRIALS, WARM_UP, Rate


def measure(name: str, by: str, unit: str, amount: float, trial: Callable[[], object], seconds: float) -> Rate:
    for _ in range(WARM_UP):
        trial()
    took = []
    while len(took) < FEWEST_TRIALS:
        start = time.perf_counter()
        trial()
        took.append(time.perf_counter() - start)
    return Rate(name, by, unit, amount / statistics.median(took), amount / min(took), len(took))
