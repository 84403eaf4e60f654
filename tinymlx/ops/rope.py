"""Rotary position embedding (Su et al., 2021, arXiv:2104.09864) and the scalings that Qwen3, Qwen2 and Llama checkpoints name."""

import math
from collections.abc import Mapping

import mlx.core as mx
import numpy as np

from tinymlx import ops


def rope_frequencies(head_dim: int, theta: float) -> np.ndarray:
    """Radians a token for each of the D/2 pairs: theta^(-2i / D).

    >>> rope_frequencies(4, 100.0)
    array([1. , 0.1])

    Returns [D/2] float64: they are computed once, and position times frequency goes up to 10^5.
    """
    return theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)


def rope_periods(head_dim: int, theta: float, scaling: Mapping | None = None) -> tuple[mx.array, float]:
    """Tokens a radian for each of the D/2 pairs, and the factor by which queries and keys are scaled.

    >>> rope_periods(4, 100.0)
    (array([1, 10], dtype=float32), 1.0)

    scaling: Hugging Face's `rope_scaling` with `rope_type` "linear", "llama3" or "yarn" and `original_max_position_embeddings`
    filled in (`ModelConfig` does both). YaRN: Peng et al., 2023, arXiv:2309.00071, section 3.
    """
    plain = ops.rope_frequencies(head_dim, theta)
    kind = scaling["rope_type"] if scaling else "default"
    if kind == "default":
        frequencies, scale = plain, 1.0
    elif kind == "linear":
        frequencies, scale = plain / scaling["factor"], 1.0
    elif kind == "llama3":
        frequencies, scale = _llama3(plain, scaling), 1.0
    elif kind == "yarn":
        frequencies, scale = ops.yarn_frequencies(plain, head_dim, theta, scaling), _yarn_scale(scaling)
    else:
        raise ValueError(f"rope_type {kind!r} is not one of default, linear, llama3, yarn")
    return mx.array((1 / frequencies).astype(np.float32)), scale


def _llama3(plain: np.ndarray, scaling: Mapping) -> np.ndarray:
    """Long waves are stretched by `factor`, short ones kept, those between blended."""
    turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return plain * (keep + (1 - keep) / scaling["factor"])


def yarn_frequencies(plain: np.ndarray, head_dim: int, theta: float, scaling: Mapping) -> np.ndarray:
    """Frequencies for a context `factor` times the original that leave near distances as they were (YaRN, arXiv:2309.00071, section 3).

    Pairs that turn `beta_fast` times (default 32) or more in the original context are kept, those that turn `beta_slow` times (1) or
    fewer are slowed by `factor`, and between these two indices (the lower rounded down, the upper up, unless `truncate` is False) the
    share of slowing rises linearly. plain: [D/2] from `rope_frequencies`. Returns [D/2].
    """
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(scaling.get("beta_fast") or 32), pair_that_turns(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    slowed = np.clip((np.arange(head_dim // 2) - low) / (high - low or 1e-3), 0.0, 1.0)
    return plain / factor * slowed + plain * (1 - slowed)


def _yarn_scale(scaling: Mapping) -> float:
    """What queries and keys are multiplied by: 0.1 ln(factor) + 1, unless the config says otherwise."""

    def magnitude(mscale: float) -> float:
        return 0.1 * mscale * math.log(scaling["factor"]) + 1.0 if scaling["factor"] > 1 else 1.0

    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    mscale, mscale_all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return magnitude(mscale) / magnitude(mscale_all_dim) if mscale and mscale_all_dim else magnitude(1.0)


def rope(x: mx.array, positions: mx.array, periods: mx.array, scale: float = 1.0) -> mx.array:
    """Turn pair (i, i + D/2) of every head by position / periods[i] radians.

    x: [B, heads, L, D], positions: [B, L], periods: [D/2]. Returns x's shape and dtype, multiplied by `scale`.
    """
    angles = positions[:, None, :, None].astype(mx.float32) / periods  # [B, 1, L, D/2]
    cos, sin = mx.cos(angles) * scale, mx.sin(angles) * scale
    first, second = mx.split(x.astype(mx.float32), 2, axis=-1)
    turned = mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
