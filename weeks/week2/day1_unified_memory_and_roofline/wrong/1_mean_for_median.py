"""Divides by the mean time: one trial that another program disturbed pulls the figure down.

caught by: TestTask1Measure::test_median_and_best
"""

import statistics
import time
from collections.abc import Callable

from tinymlx.bench.bandwidth import FEWEST_TRIALS, WARM_UP, Rate


def measure(name: str, by: str, unit: str, amount: float, trial: Callable[[], object], seconds: float) -> Rate:
    for _ in range(WARM_UP):
        trial()
    took = []
    began = time.perf_counter()
    while len(took) < FEWEST_TRIALS or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        trial()
        took.append(time.perf_counter() - start)
    return Rate(name, by, unit, amount / statistics.mean(took), amount / min(took), len(took))
