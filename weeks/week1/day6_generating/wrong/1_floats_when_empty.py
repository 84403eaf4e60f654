"""Builds lists: an empty one becomes an array of floats, and then all indices of the step are floats.

caught by: TestTask1PageSlots::test_nothing_to_write
"""

from collections.abc import Sequence

import numpy as np


def page_slots(table: Sequence[int], start: int, count: int, page_size: int) -> tuple[np.ndarray, np.ndarray]:
    places = [divmod(position, page_size) for position in range(start, start + count)]
    return np.array([table[page] for page, _ in places]), np.array([slot for _, slot in places])
