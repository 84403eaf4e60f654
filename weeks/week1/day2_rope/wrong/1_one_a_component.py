"""Each frequency twice, once for either half, as libraries do that multiply whole heads by cos and sin.

caught by: TestTask1Frequencies::test_one_a_pair
"""

import numpy as np


def rope_frequencies(head_dim: int, theta: float) -> np.ndarray:
    frequencies = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    return np.concatenate([frequencies, frequencies])
