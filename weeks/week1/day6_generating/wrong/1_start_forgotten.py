"""Counts from position 0: each step overwrites the beginning of the text.

caught by: TestTask1PageSlots::test_in_the_middle
"""

from collections.abc import Sequence

import numpy as np


def page_slots(table: Sequence[int], start: int, count: int, page_size: int) -> tuple[np.ndarray, np.ndarray]:
    positions = np.arange(count)
    return np.asarray(table, np.int64)[positions // page_size], positions % page_size
