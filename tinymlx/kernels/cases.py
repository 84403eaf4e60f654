"""Every kernel of metal_kernels/ over shapes and dtypes, beside its twin: what `tinymlx kernels check` and the tests go through."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from tinymlx import ops
from tinymlx.kernels.rms_norm import rms_norm
from tinymlx.kernels.w4_matvec import w4_matvec

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
ROUNDOFF = {mx.float32: 2.0**-24, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}


class Case(NamedTuple):
    """`run()` calls the kernel; `want` is what its outputs must be, in float64, and `bound` how far they may be off."""

    label: str
    run: Callable[[], list[mx.array]]
    want: Callable[[], list[np.ndarray]]
    bound: Callable[[], list[np.ndarray]]


def _draw(rng: np.random.Generator, *shape: int, dtype: mx.Dtype) -> mx.array:
    return mx.array(rng.standard_normal(shape).astype(np.float32)).astype(dtype)


def _float64(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def _name(dtype: mx.Dtype) -> str:
    return str(dtype).rpartition(".")[2]


def _rms_norm(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in DTYPES:
        for rows, K, residual in (
            (1, 1, False),
            (3, 7, True),
            (2, 33, False),
            (1, 128, True),
            (7, 1024, True),
            (1, 2560, False),
        ):
            x, r = _draw(rng, rows, K, dtype=dtype), _draw(rng, rows, K, dtype=dtype) if residual else None
            weight = _draw(rng, K, dtype=dtype)

            def run(x=x, r=r, weight=weight):
                got = rms_norm(x, weight, 1e-6, r)
                return [got] if r is None else list(got)

            def want(x=x, r=r, weight=weight):
                h = x if r is None else x + r
                wide = _float64(h)
                y = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * _float64(weight)
                return [y] if r is None else [y, wide]

            def bound(want=want, r=r, dtype=dtype, K=K):
                # Rounded to T twice (before and after the weight); the sum of squares costs log2(K) + 6 float32 roundings.
                relative = 2.2 * ROUNDOFF[dtype] + (np.log2(K) + 8) * ROUNDOFF[mx.float32]
                return [np.abs(want()[0]) * relative + 1e-7] + ([] if r is None else [0.0])

            label = f"{_name(dtype)} {rows} x {K}{' + residual' if residual else ''}"
            yield Case(label, run, want, bound)


def _w4_matvec(rng: np.random.Generator) -> Iterator[Case]:
    shapes = (
        (1, 32, 1, 32),
        (2, 64, 7, 64),
        (7, 128, 31, 32),
        (8, 1088, 8, 64),
        (16, 256, 33, 128),
        (1, 1024, 96, 64),
        (3, 2048, 20, 128),
    )
    for dtype in DTYPES:
        for rows, K, N, group in shapes:
            scales = mx.float16 if (dtype, rows) == (mx.float32, 1) else dtype  # a GGUF's are float16 whatever x is
            x = _draw(rng, rows, K, dtype=dtype)
            packed, scale, bias = mx.quantize(_draw(rng, N, K, dtype=mx.float32) / K**0.5, group_size=group, bits=4)
            w = ops.Linear(packed, None, scale.astype(scales), bias.astype(scales), ops.Quantization(group, 4))

            def run(x=x, w=w):
                return [w4_matvec(x, w)]

            def dense(w=w):
                codes = (np.array(w.weight)[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15).reshape(
                    w.weight.shape[0], -1
                )
                repeat = w.quantization.group_size
                return codes * np.repeat(_float64(w.scales), repeat, 1) + np.repeat(_float64(w.biases), repeat, 1)

            def want(x=x, dense=dense):
                return [_float64(x) @ dense().T]

            def bound(x=x, w=w, dense=dense, want=want, dtype=dtype, K=K):
                # A lane adds K / 32 products one after another, simd_sum five more; a weight is rounded from terms up to 15 scales.
                terms = (
                    np.abs(_float64(x))
                    @ (np.abs(dense()) + 15 * np.abs(np.repeat(_float64(w.scales), w.quantization.group_size, 1))).T
                )
                return [terms * (K / 32 + 8) * ROUNDOFF[mx.float32] + np.abs(want()[0]) * ROUNDOFF[dtype]]

            yield Case(f"{_name(dtype)} {rows} x {K} -> {N}, group {group}", run, want, bound)


KERNELS: dict[str, Callable[[np.random.Generator], Iterator[Case]]] = {"rms_norm": _rms_norm, "w4_matvec": _w4_matvec}
"""Name in metal_kernels/ -> its cases."""


def excess(case: Case, got: list[mx.array]) -> float:
    """The largest error over its bound: at most 1 where the kernel is right."""
    worst = 0.0
    for values, want, bound in zip(got, case.want(), case.bound(), strict=True):
        error = np.abs(_float64(values) - want)
        ratio = np.where(error == 0, 0.0, error / np.maximum(bound, 1e-300))
        worst = max(worst, float(np.nan_to_num(ratio, nan=np.inf).max(initial=0.0)))
    return worst
