"""qk_norm_rope: split heads, normalise each query and key head (Qwen3), turn them by position."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.kernels.route import Operation, Route


def _heads(x: mx.array, head_dim: int) -> mx.array:
    """[B, L, heads * D] -> [B, L, heads, D]"""
    return x.reshape(*x.shape[:2], -1, head_dim)


def twin(
    q: mx.array,
    k: mx.array,
    q_weight: mx.array | None,
    k_weight: mx.array | None,
    eps: float,
    offsets: mx.array,
    periods: mx.array,
    scale: float,
) -> tuple[mx.array, mx.array]:
    """q: [B, L, H*D], k: [B, L, G*D]; weights: [D] or None; offsets: [B] position of each row's first token; periods: [D/2].

    Returns [B, H, L, D], [B, G, L, D], multiplied by `scale` (YaRN's; 1 elsewhere).
    """
    positions = offsets[:, None] + mx.arange(q.shape[1])
    turned = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        x = _heads(x, 2 * periods.size)
        if weight is not None:
            x = ops.rms_norm(x, weight, eps)
        turned.append(ops.rope(x.swapaxes(1, 2), positions, periods, scale))
    return turned[0], turned[1]


def mlx(q, k, q_weight, k_weight, eps, offsets, periods, scale):
    head_dim = 2 * periods.size
    turned = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        x = _heads(x, head_dim)
        if weight is not None:
            x = mx.fast.rms_norm(x, weight, eps)
        x = x.swapaxes(1, 2)
        x = mx.fast.rope(x, head_dim, traditional=False, base=None, scale=1.0, offset=offsets, freqs=periods)
        turned.append(x if scale == 1.0 else x * scale)
    return turned[0], turned[1]


qk_norm_rope = Operation("qk_norm_rope", covers=("rms_norm", "rope"), routes={"twin": Route(twin), "mlx": Route(mlx)})
