"""Every kernel of metal_kernels/ over shapes and dtypes, beside its twin: what `tinymlx kernels check` and the tests go through."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from tinymlx import ops
from tinymlx.kernels.embed import ours as embed_w4
from tinymlx.kernels.norm_gate_up import ours as norm_gate_up
from tinymlx.kernels.norm_qkv import ours as norm_qkv
from tinymlx.kernels.qk_norm_rope import ours as qk_norm_rope
from tinymlx.kernels.quantize_w4 import quantize_w4
from tinymlx.kernels.rms_norm import rms_norm
from tinymlx.kernels.w4_matmul import w4_matmul
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


def _packed(
    rng: np.random.Generator, N: int, K: int, group: int, dtype: mx.Dtype, bits: int = 4, mode: str = "affine"
) -> ops.Linear:
    arrays = mx.quantize(_draw(rng, N, K, dtype=mx.float32) / K**0.5, group_size=group, bits=bits, mode=mode)
    scales = arrays[1:] if mode == "mxfp4" else [a.astype(dtype) for a in arrays[1:]]
    return ops.Linear(arrays[0], None, *(*scales, None)[:2], ops.Quantization(group, bits, mode))


def _dense(w: ops.Linear) -> tuple[np.ndarray, np.ndarray]:
    """In float64 the weights [N, K], and the largest term that the sum for one of them passes through."""
    if w.biases is None:
        dense = _float64(ops.dequantize(w))  # exact in any dtype
        return dense, np.abs(dense)
    scales, biases = (np.repeat(_float64(a), w.quantization.group_size, 1) for a in (w.scales, w.biases))
    dense = np.array(ops.unpack(w.weight, w.quantization.bits)).astype(np.float64) * scales + biases
    largest = 2**w.quantization.bits + (
        1024 if w.quantization.bits == 4 else 0
    )  # tensor cores take 128 + q or 1024 + q
    return dense, np.abs(dense) + np.abs(biases) + largest * np.abs(scales)


def _normed(x: mx.array, weight: mx.array | None, eps: float) -> np.ndarray:
    wide = _float64(x)
    return wide if weight is None else wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps) * _float64(weight)


def _product(h: np.ndarray, w: ops.Linear, dtype: mx.Dtype, rounded: bool) -> tuple[np.ndarray, np.ndarray]:
    """h W^T in float64, and how far a kernel may be off before it rounds the result.

    A lane adds K / 32 products one after another, and some 20 sums of lanes, groups and simdgroups. rounded: weights, or x times its norm's
    weight, are rounded to dtype where matrix units multiply; these errors are independent, and five of their deviations are allowed.
    """
    dense, largest = _dense(w)
    error = np.abs(h) @ largest.T * (h.shape[-1] / 32 + 20) * ROUNDOFF[mx.float32]
    if rounded and dtype != mx.float32:
        error = error + 5 * np.sqrt(h**2 @ (dense**2).T) * ROUNDOFF[dtype]
    return h @ dense.T, error


def _w4_matvec(rng: np.random.Generator) -> Iterator[Case]:
    shapes = (  # rows, K, N, group, bits, mode, with norm, delta and residual
        (1, 32, 1, 32, 4, "affine", False),
        (2, 64, 7, 64, 4, "affine", True),
        (7, 128, 31, 32, 4, "affine", True),
        (8, 1088, 8, 64, 4, "affine", False),
        (16, 256, 33, 128, 4, "affine", False),
        (1, 1024, 96, 64, 4, "affine", True),
        (3, 2176, 20, 128, 4, "affine", True),
        (1, 2112, 7, 64, 8, "affine", True),
        (5, 96, 33, 32, 4, "mxfp4", True),
        (4, 384, 8, 128, 8, "affine", False),
    )
    for dtype in DTYPES:
        for rows, K, N, group, bits, mode, fused in shapes:
            scales = mx.float16 if (dtype, rows) == (mx.float32, 1) else dtype  # a GGUF's are float16 whatever x is
            x, w = _draw(rng, rows, K, dtype=dtype), _packed(rng, N, K, group, scales, bits, mode)
            weight, delta, residual = (
                _draw(rng, *s, dtype=dtype) if fused else None for s in ((K,), (rows, N), (rows, N))
            )

            def run(x=x, w=w, weight=weight, delta=delta, residual=residual):
                return [w4_matvec(x, w, None if weight is None else (weight, 1e-5), delta, residual)]

            def parts(x=x, w=w, weight=weight, delta=delta, residual=residual, dtype=dtype):
                y, error = _product(_normed(x, weight, 1e-5), w, dtype, rounded=weight is not None)
                if delta is None:
                    return y, error + np.abs(y) * ROUNDOFF[dtype]
                first = y + _float64(delta)
                last = first + _float64(residual)
                return last, error + np.abs(first) * 1.01 * ROUNDOFF[dtype] + np.abs(last) * 1.01 * ROUNDOFF[
                    dtype
                ] + error

            label = f"{_name(dtype)} {rows} x {K} -> {N}, {bits} bits {mode}, group {group}{', fused' if fused else ''}"
            yield Case(label, run, lambda parts=parts: [parts()[0]], lambda parts=parts: [parts()[1]])


def _w4_matmul(rng: np.random.Generator) -> Iterator[Case]:
    shapes = (
        (1, 32, 7, 32, 4, "affine"),
        (33, 160, 31, 32, 4, "affine"),
        (17, 1088, 8, 64, 4, "affine"),
        (40, 384, 72, 128, 8, "affine"),
        (31, 96, 33, 32, 4, "mxfp4"),
    )
    for dtype in DTYPES:
        if dtype == mx.float32 and mx.cuda.is_available() and mx.default_device() == mx.gpu:
            continue  # the kernel refuses it
        for rows, K, N, group, bits, mode in shapes:
            x, w = _draw(rng, rows, K, dtype=dtype), _packed(rng, N, K, group, dtype, bits, mode)

            def parts(x=x, w=w, dtype=dtype):
                y, error = _product(_float64(x), w, dtype, rounded=True)
                return y, error + np.abs(y) * ROUNDOFF[dtype]

            yield Case(
                f"{_name(dtype)} {rows} x {K} -> {N}, {bits} bits {mode}, group {group}",
                lambda x=x, w=w: [w4_matmul(x, w)],
                lambda parts=parts: [parts()[0]],
                lambda parts=parts: [parts()[1]],
            )


def _norm_qkv(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in DTYPES:
        for rows, K, NQ, NK, group, adapted in (
            (1, 64, 7, 1, 32, False),
            (3, 1088, 31, 8, 64, True),
            (8, 128, 33, 7, 128, False),
        ):
            x, weight = _draw(rng, rows, K, dtype=dtype), _draw(rng, K, dtype=dtype)
            weights = [_packed(rng, N, K, group, dtype) for N in (NQ, NK, NK)]
            if adapted:
                lora = ops.Lora(_draw(rng, 2, K, dtype=dtype) / K**0.5, _draw(rng, NK, 2, dtype=dtype), 1.5)
                weights[2] = weights[2]._replace(lora=lora)

            def parts(x=x, weight=weight, weights=weights, dtype=dtype):
                h = _normed(x, weight, 1e-5)
                for w in weights:
                    y, error = _product(h, w, dtype, rounded=True)
                    if w.lora is not None:  # by MLX, rounded to dtype at each step
                        a, b = _float64(w.lora.a), _float64(w.lora.b)
                        y = y + 1.5 * h @ a.T @ b.T
                        error = error + 1.5 * np.abs(h) @ np.abs(a).T @ np.abs(b).T * 8 * ROUNDOFF[dtype]
                    yield y, error + np.abs(y) * ROUNDOFF[dtype]

            yield Case(
                f"{_name(dtype)} {rows} x {K} -> {NQ}, {NK}, {NK}, group {group}{', adapter' if adapted else ''}",
                lambda x=x, weight=weight, weights=weights: list(norm_qkv(x, weight, 1e-5, *weights)),
                lambda parts=parts: [y for y, _ in parts()],
                lambda parts=parts: [bound for _, bound in parts()],
            )


def _norm_gate_up(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in DTYPES:
        for rows, K, N, group in ((1, 64, 7, 32), (3, 2112, 33, 64), (8, 128, 31, 128)):
            x, weight = _draw(rng, rows, K, dtype=dtype), _draw(rng, K, dtype=dtype)
            gate, up = _packed(rng, N, K, group, dtype), _packed(rng, N, K, group, dtype)

            def parts(x=x, weight=weight, gate=gate, up=up, dtype=dtype):
                h, u = _normed(x, weight, 1e-5), ROUNDOFF[dtype]
                (g, g_error), (v, v_error) = (
                    _product(h, gate, dtype, rounded=True),
                    _product(h, up, dtype, rounded=True),
                )
                silu = g / (1 + np.exp(-g))
                g_error, v_error = g_error + np.abs(g) * u, v_error + np.abs(v) * u
                # silu is at most 1.1 steep; it and the product are rounded.
                bound = (1.1 * g_error + np.abs(silu) * u) * (np.abs(v) + v_error) + np.abs(silu) * v_error
                return silu * v, 1.01 * bound + np.abs(silu * v) * (u + 8 * ROUNDOFF[mx.float32]) + 2.0**-24 * (
                    u > 2**-20
                )

            yield Case(
                f"{_name(dtype)} {rows} x {K} -> {N}, group {group}",
                lambda x=x, weight=weight, gate=gate, up=up: [norm_gate_up(x, weight, 1e-5, gate, up)],
                lambda parts=parts: [parts()[0]],
                lambda parts=parts: [parts()[1]],
            )


def _quantize_w4(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in DTYPES:
        for N, K, group in ((1, 32, 32), (7, 64, 64), (8, 96, 32), (31, 384, 128), (33, 1024, 64)):
            w = _draw(rng, N, K, dtype=dtype) * 10.0 ** mx.array(rng.uniform(-8, 2, (N, 1))).astype(dtype)
            special = (
                mx.zeros(group),
                mx.ones(group),
                -mx.ones(group),
                mx.abs(w[0, :group]),
                -mx.abs(w[0, :group]),
                mx.arange(group) / 2,
            )
            w = mx.concatenate([w, *(mx.tile(row[None], (1, K // group)).astype(dtype) for row in special)])

            def halves(arrays):
                """Packed words in two, for which float32 has the bits."""
                return [arrays[0].view(mx.uint16), *arrays[1:]]

            def run(w=w, group=group):
                return halves(quantize_w4(w, group))

            def want(w=w, group=group):
                return [_float64(x) for x in halves(mx.quantize(w, group_size=group, bits=4))]

            yield Case(f"{_name(dtype)} {N} x {K}, group {group}", run, want, lambda: [np.zeros(1)] * 3)


def _embed_w4(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in DTYPES:
        for tokens, V, K, group, bits, mode in (
            (1, 7, 32, 32, 4, "affine"),
            (8, 33, 1088, 64, 8, "affine"),
            (7, 31, 128, 128, 4, "affine"),
            (2, 8, 96, 32, 4, "mxfp4"),
            (33, 100, 1024, 64, 4, "affine"),
        ):
            scales = mx.bfloat16 if (dtype, tokens) == (mx.float32, 7) else dtype
            packed = mx.quantize(_draw(rng, V, K, dtype=scales), group_size=group, bits=bits, mode=mode)
            table = ops.Linear(packed[0], None, *(*packed[1:], None)[:2], ops.Quantization(group, bits, mode))
            ids = mx.array(rng.integers(0, V, (1, tokens)))

            def run(ids=ids, table=table, dtype=dtype):
                return [embed_w4(ids, table, dtype)]

            def want(ids=ids, table=table, group=group):
                if table.biases is None:  # exact in any dtype
                    return [_float64(ops.embedding(ids, table))]
                q = np.array(ops.unpack(table.weight, table.quantization.bits)).astype(np.float64)
                dense = q * np.repeat(_float64(table.scales), group, 1) + np.repeat(_float64(table.biases), group, 1)
                return [dense[np.array(ids)]]

            def bound(table=table, want=want, dtype=dtype, bits=bits):
                # Product and sum are rounded in float32, beside the largest product; the result to dtype.
                largest = 0.0 if table.biases is None else 2.0**bits * np.abs(_float64(table.scales)).max()
                return [
                    2 * largest * ROUNDOFF[mx.float32] + np.abs(want()[0]) * (ROUNDOFF[dtype] + ROUNDOFF[mx.float32])
                ]

            yield Case(f"{_name(dtype)} {tokens} of {V} x {K}, {bits} bits {mode}, group {group}", run, want, bound)


def _qk_norm_rope(rng: np.random.Generator) -> Iterator[Case]:
    shapes = (  # the last: how far the weights' dtype is behind q's in DTYPES, or None without a norm
        (2, 3, 16, 8, 128, (100_000, 5), 0),
        (1, 1, 1, 1, 64, (0,), None),
        (7, 1, 2, 1, 96, (131_071, 0, 31, 32, 33, 7, 1_000_003), None),
        (8, 3, 3, 2, 80, (7, 100_000, 0, 3, 40_961, 1, 2, 9), 1),
        (1, 17, 1, 2, 256, (99_990,), 2),
        (2, 1, 3, 2, 6, (1, 2), 0),
    )
    for at, dtype in enumerate(DTYPES):
        for B, L, H, G, D, offsets, norm in shapes:
            q, k = (_draw(rng, B, L, heads * D, dtype=dtype) for heads in (H, G))
            weights = [None if norm is None else _draw(rng, D, dtype=DTYPES[(at + norm) % 3]) for _ in range(2)]
            periods, scale = ops.rope_periods(D, 1e6)[0], 1.0 if norm == 0 else 1.2
            positions = np.array(offsets)[:, None] + np.arange(L)
            angles = positions[:, None, :, None] / _float64(periods)  # [B, 1, L, D/2]

            def run(q=q, k=k, weights=weights, offsets=offsets, periods=periods, scale=scale):
                return list(qk_norm_rope(q, k, *weights, 1e-3, mx.array(offsets), periods, scale))

            def halves(q=q, k=k, weights=weights, D=D):
                for x, weight in ((q, weights[0]), (k, weights[1])):
                    x = _float64(x).reshape(*x.shape[:2], -1, D).swapaxes(1, 2)
                    if weight is not None:
                        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * _float64(weight)
                    yield np.split(x, 2, axis=-1)

            def want(halves=halves, angles=angles, scale=scale):
                cos, sin = scale * np.cos(angles), scale * np.sin(angles)
                return [np.concatenate([a * cos - b * sin, b * cos + a * sin], -1) for a, b in halves()]

            def bound(halves=halves, want=want, angles=angles, scale=scale, D=D, dtype=dtype):
                # An angle is rounded, unless it is a float32; the sum of squares costs D / 32 + 5 roundings, the rest 12 (cos and sin 4 each).
                angle = np.where(angles == angles.astype(np.float32), 0, angles)
                terms = [scale * (np.abs(a) + np.abs(b)) * (angle + D / 32 + 17) for a, b in halves()]
                wide = [np.concatenate([term, term], -1) * ROUNDOFF[mx.float32] for term in terms]
                return [
                    w + np.abs(y) * ROUNDOFF[dtype] + 2.0**-25 * (dtype == mx.float16) for w, y in zip(wide, want())
                ]

            weighted = "no norm" if norm is None else f"weights {_name(weights[0].dtype)}"
            yield Case(f"{_name(dtype)} {B} x {L}, {H} and {G} heads of {D}, {weighted}", run, want, bound)


KERNELS: dict[str, Callable[[np.random.Generator], Iterator[Case]]] = {
    "rms_norm": _rms_norm,
    "qk_norm_rope": _qk_norm_rope,
    "quantize_w4": _quantize_w4,
    "embed_w4": _embed_w4,
    "w4_matvec": _w4_matvec,
    "norm_qkv": _norm_qkv,
    "norm_gate_up": _norm_gate_up,
    "w4_matmul": _w4_matmul,
}
"""Name in metal_kernels/ -> its cases."""


def excess(case: Case, got: list[mx.array]) -> float:
    """The largest error over its bound: at most 1 where the kernel is right."""
    worst = 0.0
    for values, want, bound in zip(got, case.want(), case.bound(), strict=True):
        error = np.abs(_float64(values) - want)
        ratio = np.where(error == 0, 0.0, error / np.maximum(bound, 1e-300))
        worst = max(worst, float(np.nan_to_num(ratio, nan=np.inf).max(initial=0.0)))
    return worst
