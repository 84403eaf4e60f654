"""Counts the first trials too, which meet cold caches, new pages and kernels being built.

caught by: TestTask1Measure::test_the_warm_up_counts_for_nothing
"""

import statistics
import time
from collections.abc import Callable

from tinymlx.bench.bandwidth import FEWEST_TRIALS, Rate


def measure(name: str, by: str, unit: str, amount: float, trial: Callable[[], object], seconds: float) -> Rate:
    took = []
    began = time.perf_counter()
    while len(took) < FEWEST_TRIALS or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        trial()
        took.append(time.perf_counter() - start)
    return Rate(name, by, unit, amount / statistics.median(took), amount / min(took), len(took))
