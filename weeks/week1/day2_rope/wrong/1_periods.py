"""Tokens a radian instead of radians a token: the fast pairs become the slow ones.

caught by: TestTask1Frequencies::test_against_decimals
"""

import numpy as np


def rope_frequencies(head_dim: int, theta: float) -> np.ndarray:
    return theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
