"""rms_norm by our own kernel, with the addition of a residual in front of it."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.kernels.gradient import differentiable
from tinymlx.kernels.metal import MetalKernel
from tinymlx.kernels.w4_matvec import FLOATS, constant

_LANES = """thread_index_in_threadgroup, thread_index_in_simdgroup, simdgroup_index_in_threadgroup, partial);"""
_SCRATCH = "threadgroup float partial[SIMDGROUPS];\n  "
_ROW = "K, threadgroup_position_in_grid.x, "
PLAIN = MetalKernel(
    "rms_norm",
    inputs=("x", "weight", "eps"),
    outputs=("y",),
    body=f"  {_SCRATCH}rms_norm<T, false, SIMDGROUPS>(x, x, weight, eps, y, y, {_ROW}{_LANES}\n",
)
RESIDUAL = MetalKernel(
    "rms_norm",
    inputs=("x", "residual", "weight", "eps"),
    outputs=("y", "h"),
    body=f"  {_SCRATCH}rms_norm<T, true, SIMDGROUPS>(x, residual, weight, eps, y, h, {_ROW}{_LANES}\n",
)


def rms_norm(
    x: mx.array, weight: mx.array, eps: float, residual: mx.array | None = None
) -> mx.array | tuple[mx.array, mx.array]:
    """x, residual: [..., K]; weight: [K]. Returns the norm of x [..., K] in x's dtype; with `residual`, that of x + residual, and x + residual.

    Raises ValueError for shapes that do not fit, or a dtype that is not float32, float16 or bfloat16.
    """
    if x.dtype not in (mx.float32, mx.float16, mx.bfloat16):
        raise ValueError(f"x is {x.dtype}; float32, float16 and bfloat16 are accepted")
    if x.ndim == 0 or weight.shape != x.shape[-1:] or weight.dtype not in FLOATS:
        raise ValueError(
            f"weight is {weight.dtype} {weight.shape}; x of shape {x.shape} needs floating point {x.shape[-1:]}"
        )
    if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
        raise ValueError(f"residual is {residual.dtype} {residual.shape}; x is {x.dtype} {x.shape}")
    if x.size == 0:
        return x if residual is None else (x, x)
    return _rms_norm(x, weight, eps, residual)


def _twin(x, weight, eps, residual):
    h = x if residual is None else x + residual
    y = ops.rms_norm(h, weight, eps)
    return y if residual is None else (y, h)


def _run(x, weight, eps, residual):
    K = x.shape[-1]
    simdgroups = min(max(K // 128, 1), 16)
    launch = {
        "template": {"T": x.dtype, "SIMDGROUPS": simdgroups, "K": K},
        "grid": (x.size // K * simdgroups * 32, 1, 1),
        "threadgroup": (simdgroups * 32, 1, 1),
    }
    if residual is None:
        return PLAIN(x, weight, constant(eps), shapes=[x.shape], dtypes=[x.dtype], **launch)[0]
    y, h = RESIDUAL(x, residual, weight, constant(eps), shapes=[x.shape] * 2, dtypes=[x.dtype] * 2, **launch)
    return y, h


_rms_norm = differentiable(_run, _twin)
