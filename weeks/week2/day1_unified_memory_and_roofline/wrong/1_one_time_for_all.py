"""Times all trials together, so that median and best are the mean.

caught by: TestTask1Measure::test_median_and_best
"""

import time
from collections.abc import Callable

from tinymlx.bench.bandwidth import FEWEST_TRIALS, WARM_UP, Rate


def measure(name: str, by: str, unit: str, amount: float, trial: Callable[[], object], seconds: float) -> Rate:
    for _ in range(WARM_UP):
        trial()
    trials = 0
    began = time.perf_counter()
    while trials < FEWEST_TRIALS or time.perf_counter() - began < seconds:
        trial()
        trials += 1
    rate = amount * trials / (time.perf_counter() - began)
    return Rate(name, by, unit, rate, rate, trials)
