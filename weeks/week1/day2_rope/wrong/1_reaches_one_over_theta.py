"""Spreads the exponents from 0 to 1 with both ends: every pair but the first is a little too slow.

caught by: TestTask1Frequencies::test_against_decimals
"""

import numpy as np


def rope_frequencies(head_dim: int, theta: float) -> np.ndarray:
    return theta ** -np.linspace(0.0, 1.0, head_dim // 2)
