"""The ramp as the paper writes it, linear in the turns. Checkpoints are run with one that is linear in the index.

caught by: TestTask3Yarn::test_against_a_loop
"""

import math
from collections.abc import Mapping

import numpy as np


def yarn_frequencies(plain: np.ndarray, head_dim: int, theta: float, scaling: Mapping) -> np.ndarray:
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    fast, slow = scaling.get("beta_fast") or 32, scaling.get("beta_slow") or 1
    turns = original * plain / (2 * math.pi)
    kept = np.clip((turns - slow) / (fast - slow), 0.0, 1.0)
    return plain * kept + plain / factor * (1 - kept)
