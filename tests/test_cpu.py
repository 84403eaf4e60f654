"""Products of packed weights by our C++: right beside float64, the same for a row whatever is beside it, on any number of threads."""

import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest

from tinymlx import kernels, ops
from tinymlx.kernels import cpu
from tinymlx.kernels.gradient import gradients
from tinymlx.kernels.host import compiler

pytestmark = [
    pytest.mark.capability("our code for a CPU"),
    pytest.mark.skipif(mx.default_device() != mx.cpu, reason="for a CPU"),
    pytest.mark.skipif(cpu.library() is None, reason="no C++ compiler"),
]


def packed(N, K, group=64, bits=4, dtype=mx.float32, seed=0):
    rng = np.random.default_rng(seed)
    arrays = mx.quantize(mx.array(rng.standard_normal((N, K)).astype(np.float32)) / K**0.5, group_size=group, bits=bits)
    return ops.Linear(arrays[0], None, *(a.astype(dtype) for a in arrays[1:]), ops.Quantization(group, bits))


def draw(*shape, seed=1):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def float64(x, w):
    """x W^T, and the sum of the magnitudes of all terms."""
    wide = lambda a: np.repeat(np.array(a.astype(mx.float32)).astype(np.float64), w.quantization.group_size, 1)  # noqa: E731
    q, x = np.array(ops.unpack(w.weight, w.quantization.bits)).astype(np.float64), np.array(x).astype(np.float64)
    scales, biases = wide(w.scales), wide(w.biases)
    return x @ (scales * q + biases).T, np.abs(x) @ (np.abs(scales) * q + np.abs(biases)).T


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", [4, 8])
def test_equals_float64(bits, group, dtype):
    for rows, steps, N in ((1, 1, 1), (3, 3, 7), (5, 9, 33), (8, 2, 31), (17, 5, 70)):
        x, w = draw(rows, steps * group), packed(N, steps * group, group, bits, dtype)
        want, terms = float64(x, w)
        # Eight lanes add up to K / 8 terms each, in sums of a step and over steps; then eight lanes and the biases of the groups.
        bound = terms * (steps * group / 8 + steps + 8) * 2.0**-24
        assert (np.abs(np.array(cpu.products(x, w)[0]) - want) <= bound).all()


@pytest.mark.parametrize("K", [64, 1088])
def test_norm_residual_and_swiglu(K):
    x, weight, residual = 3 * draw(5, K), draw(K, seed=2), draw(5, 33, seed=3)
    gate, up = packed(33, K, seed=4), packed(33, K, seed=5)
    wide = np.array(x).astype(np.float64)
    h = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * np.array(weight)
    (g, g_terms), (u, u_terms) = float64(h, gate), float64(h, up)
    roundings = (K / 8 + K / 64 + K / 8 + 16) * 2.0**-24  # of a product, and of the norm
    got = cpu.products(x, gate, norm=(weight, 1e-5), residual=residual)[0]
    want = g + np.array(residual)
    assert (np.abs(np.array(got) - want) <= g_terms * roundings + np.abs(want) * 2.0**-24).all()
    silu = g / (1 + np.exp(-g))
    bound = 1.1 * g_terms * roundings * np.abs(u) + np.abs(silu) * u_terms * roundings + np.abs(silu * u) * 8 * 2.0**-24
    assert (
        np.abs(np.array(cpu.products(x, gate, up, norm=(weight, 1e-5), swiglu=True)[0]) - silu * u) <= 1.01 * bound
    ).all()


def test_swiglu_far_out():
    """Of numbers whose exponential is beyond float32, up to the largest."""
    g = np.array([0, -0.0, 1e-30, 87, 88, 100, -87, -88, -100, 3e38, -3e38, 5, -5], np.float32)
    got = g.copy()
    cpu.library().swiglu(got.ctypes.data, np.ones_like(g).ctypes.data, g.size, 1)
    with np.errstate(over="ignore"):
        want = g / (1 + np.exp(-g.astype(np.float64)))
    assert np.allclose(got, want, rtol=3e-7, atol=1e-36)


def test_subnormal_scales():
    w = packed(4, 64, dtype=mx.float16)
    w = w._replace(scales=mx.full(w.scales.shape, 3e-7, mx.float16), biases=mx.full(w.biases.shape, -6e-8, mx.float16))
    x = draw(1, 64)
    assert np.allclose(np.array(cpu.products(x, w)[0]), float64(x, w)[0], rtol=1e-5, atol=1e-12)


def test_a_row_does_not_depend_on_the_others():
    x, w = draw(9, 576), packed(50, 576, 32)
    together = np.array(cpu.products(x, w)[0])
    for rows in (slice(0, 1), slice(3, 8), slice(7, 9)):
        assert (np.array(cpu.products(x[rows], w)[0]) == together[rows]).all()


@pytest.mark.parametrize("count", [1, 3, 16])
def test_any_number_of_threads_gives_the_same_bits(count, monkeypatch):
    x, w = draw(5, 512), [packed(N, 512, seed=N) for N in (100, 1, 33)]
    want = cpu.products(x, *w)
    monkeypatch.setattr(cpu, "threads", lambda: count)
    for got, same in zip(cpu.products(x, *w), want, strict=True):
        assert mx.array_equal(got, same)


def test_inputs_that_are_not_contiguous():
    w, wide = packed(16, 128), packed(32, 128)
    every_second = w._replace(weight=wide.weight[::2], scales=wide.scales[::2], biases=wide.biases[::2])
    x = draw(128, 3).T
    assert mx.array_equal(cpu.products(x, every_second)[0], cpu.products(mx.contiguous(x), wide)[0][:, ::2])


def test_a_forked_process_has_threads_of_its_own():
    code = """
import os, mlx.core as mx, tinymlx
from tinymlx import ops
from tinymlx.kernels import cpu
cpu.threads = lambda: 3
w = ops.Linear(*(lambda a: (a[0], None, a[1], a[2]))(mx.quantize(mx.ones((200, 64)))), ops.Quantization(64, 4))
x = mx.ones((2, 64)); mx.eval(x, w.weight, w.scales, w.biases)
want = [float(v) for v in memoryview(cpu.products(x, w)[0]).tolist()[0][:3]]
child = os.fork()
if child == 0:
    same = [float(v) for v in memoryview(cpu.products(x, w)[0]).tolist()[0][:3]] == want
    os._exit(0 if same else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_a_compiler_mlx_serves(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("TINYMLX_KERNELS", raising=False)
    compiler.native.cache_clear()
    cpu.library.cache_clear()
    try:
        assert not cpu.takes(draw(1, 64), packed(8, 64))
        y = kernels.linear_residual(mx.zeros((1, 8)), draw(1, 64), packed(8, 64))
        assert y.shape == (1, 8)
    finally:
        monkeypatch.undo()
        compiler.native.cache_clear()
        cpu.library.cache_clear()
    assert cpu.takes(draw(1, 64), packed(8, 64))


def test_what_it_leaves_to_others():
    x, w = draw(1, 128), packed(8, 128)
    assert cpu.takes(x, w) and cpu.takes(x, w, packed(3, 128))
    mxfp4 = mx.quantize(mx.ones((8, 128)), group_size=32, bits=4, mode="mxfp4")
    for other in (
        (x.astype(mx.bfloat16), w),
        (mx.zeros((0, 128)), w),
        (x, ops.Linear(mx.ones((8, 128)))),
        (x, packed(8, 128, bits=3)),
        (x, w, packed(8, 128, group=32)),
        (x, ops.Linear(mxfp4[0], None, mxfp4[1], None, ops.Quantization(32, 4, "mxfp4"))),
        (x, w._replace(biases=w.biases.astype(mx.float16))),
    ):
        assert not cpu.takes(*other)


def test_a_gradient_is_the_twins_or_an_error(monkeypatch):
    monkeypatch.delenv("TINYMLX_KERNELS", raising=False)
    w, residual = packed(8, 64), draw(2, 8)
    loss = lambda x: kernels.linear_residual(residual, x, w).square().sum()  # noqa: E731
    with pytest.raises(NotImplementedError, match="gradient"):
        mx.eval(mx.grad(loss)(draw(2, 64)))
    with gradients():
        got = mx.grad(loss)(draw(2, 64))
    want = mx.grad(lambda x: (residual + ops.linear(x, w)).square().sum())(draw(2, 64))
    assert mx.allclose(got, want, rtol=1e-4, atol=1e-4)
