"""Position interpolation: all pairs are slowed, and neighbours become four times harder to tell apart.

caught by: TestTask3Yarn::test_qwen3
"""

from collections.abc import Mapping

import numpy as np


def yarn_frequencies(plain: np.ndarray, head_dim: int, theta: float, scaling: Mapping) -> np.ndarray:
    return plain / scaling["factor"]
