"""Day 1.2: rotary position embedding. Each function here replaces the product's function of the same name; the chapter is README.md.

tinymlx learn check 1.2 --watch          grades this file whenever you save it
tinymlx learn run 1.2 --prompt "Hi"      answers with your functions inside the engine
"""

from collections.abc import Mapping

import mlx.core as mx
import numpy as np

HOMES = {"rope_frequencies": "tinymlx.ops", "rope": "tinymlx.ops", "yarn_frequencies": "tinymlx.ops"}


def rope_frequencies(head_dim: int, theta: float) -> np.ndarray:
    """Radians a token for each of the D/2 pairs: theta^(-2i / D).

    >>> rope_frequencies(4, 100.0)
    array([1. , 0.1])

    Returns [D/2], a NumPy array of float64: they are computed once, when a model is made, and positions of 10^5 multiply their error.
    """
    raise NotImplementedError("1.2 task 1: one frequency a pair")


def rope(x: mx.array, positions: mx.array, periods: mx.array, scale: float = 1.0) -> mx.array:
    """Turn pair (i, i + D/2) of every head by position / periods[i] radians, and multiply by `scale`.

    x: [B, heads, L, D]; positions: [B, L] int32, any, in any order; periods: [D/2] float32, tokens a radian. Angles, cosines, sines and
    products are float32. Returns x's shape and dtype. MLX operations only: on a GPU the engine compiles this.
    """
    raise NotImplementedError("1.2 task 2: turn pairs by their positions")


def yarn_frequencies(plain: np.ndarray, head_dim: int, theta: float, scaling: Mapping) -> np.ndarray:
    """Frequencies for a context `factor` times the original that leave near distances as they were (YaRN).

    plain: [D/2] from `rope_frequencies`, not to be changed. scaling: a checkpoint's settings, with the keys

        factor                             how many times longer the context becomes
        original_max_position_embeddings   the context that the model was trained on, in tokens
        beta_fast, beta_slow               turns in the original context; 32 and 1 where they are absent or None
        truncate                           False: the two indices are not rounded; absent: they are

    Pairs up to the index that turns `beta_fast` times (rounded down, at least 0) keep their frequency; pairs from the index that turns
    `beta_slow` times (rounded up, at most D - 1) have it divided by `factor`; the share of slowing rises linearly with the index between
    the two. Returns [D/2] float64.
    """
    raise NotImplementedError("1.2 task 3: slow the pairs that never turned round")
