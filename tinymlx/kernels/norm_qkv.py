"""norm_qkv: the block's first norm and the three projections that read it."""

import functools

import mlx.core as mx

from tinymlx import ops
from tinymlx.kernels import cpu, linear_mlx
from tinymlx.kernels.metal import MetalKernel
from tinymlx.kernels.route import Operation, Route
from tinymlx.kernels.w4_matmul import w4_linear
from tinymlx.kernels.w4_matvec import PLACE, SCRATCH, adapted, check_norm, constant, launch, most_rows, packed, takes
from tinymlx.ops.linear import Linear


def twin(
    x: mx.array, weight: mx.array, eps: float, q: Linear, k: Linear, v: Linear
) -> tuple[mx.array, mx.array, mx.array]:
    """x: [B, L, K]; weight: [K]. Returns [B, L, H*D], [B, L, G*D], [B, L, G*D]."""
    normed = ops.rms_norm(x, weight, eps)
    return ops.linear(normed, q), ops.linear(normed, k), ops.linear(normed, v)


def mlx(
    x: mx.array, weight: mx.array, eps: float, q: Linear, k: Linear, v: Linear
) -> tuple[mx.array, mx.array, mx.array]:
    normed = mx.fast.rms_norm(x, weight, eps)
    return linear_mlx.linear(normed, q), linear_mlx.linear(normed, k), linear_mlx.linear(normed, v)


def host(
    x: mx.array, weight: mx.array, eps: float, q: Linear, k: Linear, v: Linear
) -> tuple[mx.array, mx.array, mx.array]:
    y = cpu.linears(x, q, k, v, norm=(weight, eps))
    return y[0], y[1], y[2]


@functools.cache
def _kernel(delta: bool) -> MetalKernel:
    packings = [f"{part}{name}" for name in "qkv" for part in ("w", "scales_", "biases_")]
    deltas = [f"d{name}" for name in "qkv"] if delta else []
    weights = ", ".join(f"Packed<S>{{w{name}, scales_{name}, biases_{name}}}" for name in "qkv")
    return MetalKernel(
        "norm_qkv",
        inputs=("x", "weight", "eps", *packings, *deltas),
        outputs=("q", "k", "v"),
        body=f"""  {SCRATCH}norm_qkv<T, MATRIX, M, GROUP, BITS, MX, {str(delta).lower()}, OUTPUTS, SPLITS>(x, weight, eps, {weights},
      {", ".join(deltas or "xxx")}, q, k, v, K, NQ, NK, {PLACE}""",
    )


def ours(
    x: mx.array, weight: mx.array, eps: float, q: Linear, k: Linear, v: Linear
) -> tuple[mx.array, mx.array, mx.array]:
    if x.size // x.shape[-1] > most_rows(x, normed=True):
        normed = mx.fast.rms_norm(x, weight, eps)
        return w4_linear(normed, q), w4_linear(normed, k), w4_linear(normed, v)
    check_norm(x, weight)
    deltas = adapted(mx.fast.rms_norm(x, weight, eps), q, k, v)
    NQ, NK = q.weight.shape[0], k.weight.shape[0]
    tiles = lambda outputs: -(-NQ // outputs) + 2 * -(-NK // outputs)  # noqa: E731
    y = _kernel(deltas is not None)(
        *(x, weight, constant(eps), *packed(q), *packed(k), *packed(v), *(deltas or ())),
        **launch(x, q, NQ + 2 * NK, True, tiles, NQ=NQ, NK=NK),
        shapes=[(*x.shape[:-1], N) for N in (NQ, NK, NK)],
        dtypes=[x.dtype] * 3,
    )
    return y[0], y[1], y[2]


def _takes(x: mx.array, weight: mx.array, eps: float, q: Linear, k: Linear, v: Linear) -> bool:
    return takes(x, q, k, v, norm=weight) and k.weight.shape == v.weight.shape


norm_qkv = Operation(
    "norm_qkv",
    covers=("rms_norm", "linear", "dequantize"),
    routes={
        "twin": Route(twin),
        "mlx": Route(mlx),
        "host": Route(host, applies=lambda x, weight, eps, *w: cpu.takes(x, *w, norm=weight)),
        "ours": Route(ours, applies=_takes),
    },
)
