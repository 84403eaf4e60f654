"""Overlooks `truncate`: False, which gpt-oss sets.

caught by: TestTask3Yarn::test_not_truncated
"""

import math
from collections.abc import Mapping

import numpy as np


def yarn_frequencies(plain: np.ndarray, head_dim: int, theta: float, scaling: Mapping) -> np.ndarray:
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]

    def index(times: float) -> float:
        return head_dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = index(scaling.get("beta_fast") or 32), index(scaling.get("beta_slow") or 1)
    low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    slowed = np.clip((np.arange(head_dim // 2) - low) / (high - low or 1e-3), 0.0, 1.0)
    return plain / factor * slowed + plain * (1 - slowed)
