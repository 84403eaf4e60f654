"""Stops as soon as the time is over: a single slow trial is its own median and best.

caught by: TestTask1Measure::test_three_trials_at_least
"""

import statistics
import time
from collections.abc import Callable

from tinymlx.bench.bandwidth import WARM_UP, Rate


def measure(name: str, by: str, unit: str, amount: float, trial: Callable[[], object], seconds: float) -> Rate:
    for _ in range(WARM_UP):
        trial()
    took = []
    began = time.perf_counter()
    while not took or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        trial()
        took.append(time.perf_counter() - start)
    return Rate(name, by, unit, amount / statistics.median(took), amount / min(took), len(took))
