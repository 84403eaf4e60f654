"""A float32 power: right to seven digits, of which position 100,000 uses up five.

caught by: TestTask1Frequencies::test_double_precision
"""

import numpy as np


def rope_frequencies(head_dim: int, theta: float) -> np.ndarray:
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return (np.float32(theta) ** -exponents).astype(np.float64)
