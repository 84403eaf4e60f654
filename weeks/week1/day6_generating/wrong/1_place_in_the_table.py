"""Gives the place in the table instead of the page that stands there: all rows write to pages 0, 1, ...

caught by: TestTask1PageSlots::test_from_the_beginning
"""

from collections.abc import Sequence

import numpy as np


def page_slots(table: Sequence[int], start: int, count: int, page_size: int) -> tuple[np.ndarray, np.ndarray]:
    positions = np.arange(start, start + count)
    return positions // page_size, positions % page_size
