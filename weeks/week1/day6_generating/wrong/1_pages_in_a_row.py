"""Takes the pages of a row to lie one after the other in the pool: they do, until a page was freed and taken again.

caught by: TestTask1PageSlots::test_from_the_beginning
"""

from collections.abc import Sequence

import numpy as np


def page_slots(table: Sequence[int], start: int, count: int, page_size: int) -> tuple[np.ndarray, np.ndarray]:
    positions = np.arange(start, start + count)
    return table[0] + positions // page_size, positions % page_size
