"""MLX's own kernels, as text in its wheel, through the host checker: right beside MLX, and no false alarm."""

import re
import struct
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from tinymlx.kernels import host
from tinymlx.kernels.host.compiler import MLX_INCLUDE

pytestmark = [pytest.mark.full, pytest.mark.slow]

FOLDER = Path("mlx/backend/metal/kernels")
# float32 sums in another order; float16 and bfloat16 round the result, and some kernels what they accumulate in tiles
BOUND = {mx.float32: 2e-6, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}
DTYPES = list(BOUND)


@cache
def text(name: str) -> str:
    return (MLX_INCLUDE / FOLDER / name).read_text()


def header(*names: str, **constants) -> str:
    """The files included, the last one in full with its function constants set."""
    included = [f'#include "{FOLDER / name}"\n' for name in names[:-1]]

    def value(found: re.Match) -> str:
        return f"constant {found[1]} {found[2]} = {str(constants.get(found[2], 0)).lower()};"

    last = re.sub(r"constant (\w+) (\w+) \[\[function_constant\(\d+\)\]\];", value, text(names[-1]))
    return "".join(included) + last


def draw(*shape, dtype=mx.float32, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).astype(dtype)


ATTRIBUTES = """uint3 group = threadgroup_position_in_grid;
uint3 groups = threadgroups_per_grid;
uint3 thread_at = thread_position_in_threadgroup;
uint index = thread_index_in_threadgroup;
uint simdgroup = simdgroup_index_in_threadgroup;
uint lane = thread_index_in_simdgroup;
"""


def agrees(name, head, call, inputs, want, *, groups, threads, dtype, bound=None):
    """The kernel called by `call` gives `want` when run, and a check finds nothing."""
    kernel = host.Kernel(
        name=name,
        input_names=list(inputs),
        output_names=["out"],
        header=head,
        source=ATTRIBUTES + call,
        file=f"{name}.h",
    )
    launch = dict(
        inputs=list(inputs.values()),
        template=[("T", dtype)],
        grid=tuple(g * t for g, t in zip(groups, threads)),
        threadgroup=threads,
        output_shapes=[want.shape],
        output_dtypes=[dtype],
    )
    report = kernel.check(**launch, expected=[want], tolerance=bound or BOUND[dtype], schedules=3)
    assert not report.findings, str(report)
    (got,) = kernel(**launch)
    assert mx.array_equal(got, report.outputs[0], equal_nan=True)
    return report


def scalar(value, dtype=mx.int32):
    return mx.array(value, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 31, 128, 1001])
def test_softmax(dtype, n):
    x = draw(3, n, dtype=dtype)
    want = mx.softmax(x.astype(mx.float32), axis=-1)
    call = "softmax_single_row<T, float>(x, out, n, group.x, thread_at.x, lane, simdgroup);"
    threads = (n + 127) // 128 * 32
    inputs = {"x": x, "n": scalar(n)}
    agrees(
        "softmax",
        header("defines.h", "softmax.h"),
        call,
        inputs,
        want,
        groups=(3, 1, 1),
        threads=(threads, 1, 1),
        dtype=dtype,
    )


@pytest.mark.parametrize("n", [1, 1001, 3000])
def test_softmax_looped(n):
    x = draw(2, n)
    call = "softmax_looped<T, float>(x, out, n, group.x, thread_at.x, threads_per_threadgroup.x, lane, simdgroup);"
    inputs = {"x": x, "n": scalar(n)}
    want = mx.softmax(x, axis=-1)
    agrees(
        "softmax_looped",
        header("defines.h", "softmax.h"),
        call,
        inputs,
        want,
        groups=(2, 1, 1),
        threads=(1024, 1, 1),
        dtype=mx.float32,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [7, 1001])
def test_logsumexp(dtype, n):
    x = draw(3, n, dtype=dtype)
    want = mx.logsumexp(x.astype(mx.float32), axis=-1)
    call = "logsumexp<T, float>(x, out, n, group.x, thread_at.x, lane, simdgroup);"
    threads = (n + 127) // 128 * 32
    inputs = {"x": x, "n": scalar(n)}
    agrees(
        "logsumexp",
        header("defines.h", "logsumexp.h"),
        call,
        inputs,
        want,
        groups=(3, 1, 1),
        threads=(threads, 1, 1),
        dtype=dtype,
    )


QUANTIZED = ("steel/gemm/gemm.h", "quantized_utils.h", "quantized.h")


def packed(M, N, K, dtype, group_size, bits):
    w = draw(N, K, seed=1) / K**0.5
    weight, scales, biases = mx.quantize(w, group_size=group_size, bits=bits)
    scales, biases = scales.astype(dtype), biases.astype(dtype)
    x = draw(M, K, dtype=dtype, seed=2)
    dense = mx.dequantize(
        weight, scales.astype(mx.float32), biases.astype(mx.float32), group_size=group_size, bits=bits
    )
    inputs = {"w": weight, "scales": scales, "biases": biases, "x": x}
    return inputs, x.astype(mx.float32) @ dense.T


NO_BATCH = "0, nullptr, nullptr, 0, nullptr, nullptr, nullptr, nullptr"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "kernel, N, K", [("affine_qmv_fast", 16, 512), ("affine_qmv_fast", 8, 1024), ("affine_qmv", 13, 96)]
)
@pytest.mark.parametrize("group_size, bits", [(32, 4), (64, 4), (64, 8), (32, 3)])
def test_qmv(dtype, kernel, N, K, group_size, bits):
    if K % group_size:
        K = 128
    inputs, want = packed(2, N, K, dtype, group_size, bits)
    call = f"""{kernel}<T, {group_size}, {bits}, false>(w, scales, biases, x, out, K, N, {NO_BATCH},
    group, simdgroup, lane);"""
    inputs |= {"K": scalar(K), "N": scalar(N)}
    groups = (2, (N + 7) // 8, 1)
    report = agrees(kernel, header(*QUANTIZED), call, inputs, want, groups=groups, threads=(32, 2, 1), dtype=dtype)
    if kernel == "affine_qmv_fast":  # reads the packed weight once for each of the two rows
        assert report.traffic["w"].read == 2 * inputs["w"].nbytes
    assert report.traffic["w"].distinct == inputs["w"].nbytes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("M, N, K", [(1, 32, 64), (33, 64, 128), (40, 40, 64)])
def test_qmm_t(dtype, M, N, K):
    inputs, want = packed(M, N, K, dtype, 32, 4)
    aligned = str(N % 32 == 0).lower()
    call = f"""affine_qmm_t<T, 32, 4, {aligned}, false>(w, scales, biases, x, out, K, N, M, {NO_BATCH},
    group, index, simdgroup, lane);"""
    inputs |= {"K": scalar(K), "N": scalar(N), "M": scalar(M)}
    groups = ((N + 31) // 32, (M + 31) // 32, 1)
    agrees("qmm_t", header(*QUANTIZED), call, inputs, want, groups=groups, threads=(32, 2, 2), dtype=dtype)


def attention(B, H, G, L, S, D, dtype, causal):
    q, k, v = (draw(B, n, length, D, dtype=dtype, seed=i) for i, (n, length) in enumerate([(H, L), (G, S), (G, S)]))
    f = [x.astype(mx.float32) for x in (q, k, v)]
    want = mx.fast.scaled_dot_product_attention(*f, scale=D**-0.5, mask="causal" if causal else None)
    return {"q": q, "k": k, "v": v}, want


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("L, S, D", [(1, 1, 64), (1, 100, 128), (3, 65, 64)])
def test_sdpa_vector(dtype, causal, L, S, D):
    H, G = 4, 2
    inputs, want = attention(1, H, G, L, S, D, dtype, causal)
    call = f"""sdpa_vector<T, {D}>(q, k, v, out, {H // G}, {S}, size_t({S * D}), size_t({D}),
    size_t({S * D}), size_t({D}),
    {D**-0.5}f, nullptr, nullptr, 0, 0, 0, nullptr, 0, group, groups, simdgroup, lane);"""
    head = header("sdpa_vector.h", do_causal=causal)
    agrees("sdpa_vector", head, call, inputs, want, groups=(H, L, 1), threads=(1024, 1, 1), dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("L, S, D", [(32, 32, 64), (33, 65, 64), (17, 40, 128)])
def test_steel_attention(dtype, causal, L, S, D):
    H, G = 2, 1
    inputs, want = attention(1, H, G, L, S, D, dtype, causal)
    BQ, BK = 32, 16 if D == 128 else 32
    NQ, NK = -(-L // BQ), -(-S // BK)
    strides = [(H * L * D, L * D, D), (G * S * D, S * D, D), (G * S * D, S * D, D), (H * L * D, L * D, D)]
    counts = [NQ, NK, L // BQ, S // BK, L % BQ, S % BK, S - L]
    params = struct.pack("=6if7i12q", 1, H, D, L, S, H // G, D**-0.5, *counts, *sum(strides, ()))
    inputs["params"] = mx.array(np.frombuffer(params, np.uint8))
    head = header(
        "steel/attn/attn.h",
        "steel/attn/kernels/steel_attention.h",
        align_Q=L % BQ == 0,
        align_K=S % BK == 0,
        do_causal=causal,
    )
    call = f"""attention<T, {BQ}, {BK}, {D}, {D}, 4, 1>(q, k, v, out, (const constant AttnParams*)params, nullptr,
    (const device float*)nullptr, nullptr, nullptr, lane, simdgroup, group, thread_at);"""
    agrees("attention", head, call, inputs, want, groups=(NQ, H, 1), threads=(32, 4, 1), dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("M, N, K", [(32, 32, 32), (33, 40, 50)])
def test_steel_gemm(dtype, M, N, K):
    a, b = draw(M, K, dtype=dtype, seed=1), draw(K, N, dtype=dtype, seed=2)
    want = a.astype(mx.float32) @ b.astype(mx.float32)
    tiles = (-(-N // 32), -(-M // 32))
    params = struct.pack("=8i3q3i4x", M, N, K, K, N, N, *tiles, M * K, K * N, M * N, 0, K // 16, 0)
    # alpha and beta are read even where no addend is: give them a place
    inputs = {"a": a, "b": b, "params": mx.array(np.frombuffer(params, np.uint8)), "addend": mx.zeros(64, mx.uint8)}
    aligned = {"align_M": M % 32 == 0, "align_N": N % 32 == 0, "align_K": K % 16 == 0}
    head = header("steel/gemm/gemm.h", "steel/gemm/kernels/steel_gemm_fused.h", **aligned)
    call = """gemm<T, 32, 32, 16, 2, 2, false, false, float>(a, b, nullptr, out, (const constant GEMMParams*)params,
    (const constant GEMMAddMMParams*)addend, nullptr, nullptr, lane, simdgroup, group, thread_at);"""
    bound = {mx.float32: 1e-5}.get(dtype)
    agrees("gemm", head, call, inputs, want, groups=(*tiles, 1), threads=(32, 2, 2), dtype=dtype, bound=bound)


@pytest.mark.parametrize("N, K", [(64, 64), (33, 130)])
def test_gemv(N, K):
    w, x = draw(N, K, seed=1), draw(K, seed=2)
    inputs = {"w": w, "x": x, "K": scalar(K), "N": scalar(N)}
    assert "void gemv(" in text("gemv.h")
    call = """gemv<T, 4, 1, 1, 32, 4, 4, false, false>(w, x, nullptr, out, K, N, K, 0.0f, 0.0f, 1, nullptr, strides,
    strides, strides, 1, group, thread_at, simdgroup, lane);"""
    inputs["strides"] = mx.zeros(8, mx.int64)
    agrees(
        "gemv", header("gemv.h"), call, inputs, w @ x, groups=(-(-N // 16), 1, 1), threads=(32, 1, 4), dtype=mx.float32
    )
