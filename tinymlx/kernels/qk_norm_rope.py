"""qk_norm_rope: split heads, normalise each query and key head (Qwen3), turn them by position."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.kernels import cpu
from tinymlx.kernels.gradient import refusing
from tinymlx.kernels.metal import MetalKernel
from tinymlx.kernels.route import Operation, Route
from tinymlx.kernels.w4_matvec import FLOATS, constant

KERNEL = MetalKernel(
    "qk_norm_rope",
    inputs=("q", "k", "q_weight", "k_weight", "eps", "offsets", "periods", "scale"),
    outputs=("y_q", "y_k"),
    body="""  qk_norm_rope<T, D, NORM>(
      q, k, q_weight, k_weight, eps, offsets, periods, scale, y_q, y_k, H, G, threadgroups_per_grid.x,
      threadgroup_position_in_grid.x, threadgroup_position_in_grid.y * SIMDGROUPS + simdgroup_index_in_threadgroup,
      threadgroup_position_in_grid.z, thread_index_in_simdgroup);
""",
)


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


def host(q, k, q_weight, k_weight, eps, offsets, periods, scale):
    def run():
        return [cpu.norm_rope(x, w, eps, offsets, periods, scale) for x, w in ((q, q_weight), (k, k_weight))]

    turned = refusing(run, "rotation on a CPU", [a for a in (q, k, q_weight, k_weight) if a is not None])
    return turned[0], turned[1]


def _host_takes(q, k, q_weight, k_weight, eps, offsets, periods, scale) -> bool:
    return q.size > 0 and cpu.takes_attention(q, k, q_weight, k_weight, periods)


def ours(q, k, q_weight, k_weight, eps, offsets, periods, scale):
    """The twin by our own kernel, rounded once: outputs have q's dtype whatever that of the weights.

    Raises ValueError for shapes that do not fit, one weight of two, or a dtype that is not float32, float16 or bfloat16.
    """
    _check(q, k, q_weight, k_weight, offsets, periods)
    if offsets.dtype not in (mx.int32, mx.int64):  # positions are added to them
        offsets = offsets.astype(mx.int64)
    (B, L, _), D = q.shape, 2 * periods.size
    H, G = q.shape[2] // D, k.shape[2] // D
    shapes, dtypes = [(B, H, L, D), (B, G, L, D)], [q.dtype] * 2
    if B * L == 0:
        return tuple(map(mx.zeros, shapes, dtypes))
    norm, simdgroups = q_weight is not None, min(H + G, 4)
    weights = (q_weight, k_weight) if norm else (q, k)
    y_q, y_k = KERNEL(
        *(q, k, *weights, constant(eps), offsets, periods, constant(scale)),
        template={"T": q.dtype, "D": D, "NORM": norm, "H": H, "G": G, "SIMDGROUPS": simdgroups},
        grid=(32 * L, -(-(H + G) // simdgroups) * simdgroups, B),
        threadgroup=(32, simdgroups, 1),
        shapes=shapes,
        dtypes=dtypes,
    )
    return y_q, y_k


def _check(q, k, q_weight, k_weight, offsets, periods) -> None:
    if q.dtype not in FLOATS or k.dtype != q.dtype:
        raise ValueError(f"q is {q.dtype} and k {k.dtype}; one of float32, float16 and bfloat16 is accepted for both")
    if periods.ndim != 1 or periods.size == 0 or periods.dtype != mx.float32:
        raise ValueError(f"periods is {periods.dtype} {periods.shape}; float32 [D/2] is accepted")
    D = 2 * periods.size
    for name, x in (("q", q), ("k", k)):
        if x.ndim != 3 or x.shape[:2] != q.shape[:2] or x.shape[2] == 0 or x.shape[2] % D:
            raise ValueError(f"{name} has shape {x.shape}; [B, L, a multiple of {D}] is accepted, B and L as q's")
    if (q_weight is None) != (k_weight is None):
        raise ValueError(f"{'q' if q_weight is None else 'k'}_weight is None; both weights or neither are accepted")
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        if weight is not None and (
            weight.shape != (D,) or weight.dtype not in FLOATS or weight.dtype != q_weight.dtype
        ):
            raise ValueError(
                f"{name} is {weight.dtype} {weight.shape}; floating point ({D},), as q_weight, is accepted"
            )
    if offsets.shape != q.shape[:1] or not mx.issubdtype(offsets.dtype, mx.integer):
        raise ValueError(f"offsets is {offsets.dtype} {offsets.shape}; integers {q.shape[:1]} are accepted")


def _applies(q, k, q_weight, k_weight, *_) -> bool:
    """A weight wider than q makes the outputs of the other routes wider too."""
    if q.dtype not in FLOATS or k.dtype != q.dtype or (q_weight is None) != (k_weight is None):
        return False
    return q_weight is None or q_weight.dtype == k_weight.dtype and mx.result_type(q, q_weight) == q.dtype


qk_norm_rope = Operation(
    "qk_norm_rope",
    covers=("rms_norm", "rope"),
    routes={
        "twin": Route(twin),
        "mlx": Route(mlx),
        "host": Route(host, applies=_host_takes),
        "ours": Route(ours, applies=_applies),
    },
)
