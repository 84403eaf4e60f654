"""The page is right, the slot is counted from the first new token: it is right only where a step begins with a page.

caught by: TestTask1PageSlots::test_in_the_middle
"""

from collections.abc import Sequence

import numpy as np


def page_slots(table: Sequence[int], start: int, count: int, page_size: int) -> tuple[np.ndarray, np.ndarray]:
    positions = np.arange(start, start + count)
    return np.asarray(table, np.int64)[positions // page_size], (positions - start) % page_size
