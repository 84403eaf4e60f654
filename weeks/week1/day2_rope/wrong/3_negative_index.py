"""Lets the ramp begin before the first pair, so that the fastest pairs are slowed too.

caught by: TestTask3Yarn::test_short_original_context
"""

import math
from collections.abc import Mapping

import numpy as np


def yarn_frequencies(plain: np.ndarray, head_dim: int, theta: float, scaling: Mapping) -> np.ndarray:
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]

    def index(times: float) -> float:
        return head_dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = index(scaling.get("beta_fast") or 32), index(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    slowed = np.clip((np.arange(head_dim // 2) - low) / (high - low or 1e-3), 0.0, 1.0)
    return plain / factor * slowed + plain * (1 - slowed)
