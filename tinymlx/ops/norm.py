"""Root-mean-square normalisation (Zhang and Sennrich, 2019, arXiv:1910.07467)."""

import mlx.core as mx


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """Scale each vector to unit root mean square, then by `weight`.

    >>> rms_norm(mx.array([3.0, 4.0]), mx.ones(2), 0.0)      # rms of (3, 4) is 3.5355
    array([0.848528, 1.13137], dtype=float32)

    x: [..., K], weight: [K]. Returns [..., K] in x's dtype.
    """
    wide = x.astype(mx.float32)  # float32: a bf16 sum of squares keeps only 8 bits
    inverse_rms = mx.rsqrt(mx.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return weight * (wide * inverse_rms).astype(x.dtype)
