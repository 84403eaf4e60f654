"""Packing and group quantisation: ops beside mx.quantize, and our kernels' arguments."""

import mlx.core as mx
import numpy as np
import pytest

from tinymlx import kernels, ops
from tinymlx.kernels.embed import ours as embed_w4
from tinymlx.kernels.quantize_w4 import quantize_w4

pytestmark = pytest.mark.capability("ops equal float64")
BITS = pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
DTYPES = pytest.mark.parametrize(
    "dtype", [mx.float32, mx.float16, mx.bfloat16], ids=lambda d: str(d).rpartition(".")[2]
)


def groups(size):
    """Groups of many scales, of one number, of one sign, with an outlier, and such whose steps meet halves."""
    rng = np.random.default_rng(size)
    normal = rng.standard_normal(size)
    rows = [normal * 10.0**e for e in (-9, -7, -6.5, -3, 0, 3)]
    rows += [np.full(size, value) for value in (0, 1, -1, 3e-8, -3e-8, -1e-3)]
    rows += [abs(normal), -abs(normal), np.where(np.arange(size) == 3, -100, normal)]
    rows += [np.arange(size) / 2, -np.arange(size) / 2, rng.integers(-15, 16, size) / 2]
    return mx.array(np.array(rows, np.float32))


def same_bits(got, want):
    return got.dtype == want.dtype and mx.array_equal(got.view(mx.uint16), want.view(mx.uint16)).item()


@BITS
def test_packed_is_a_stream_of_bits(bits):
    codes = np.random.default_rng(bits).integers(0, 2**bits, (3, 96)).astype(np.uint32)
    stream = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(3, -1)
    want = np.packbits(stream, axis=-1, bitorder="little").view(np.uint32)
    assert (np.array(ops.pack(mx.array(codes), bits)) == want).all()
    assert (np.array(ops.unpack(mx.array(want), bits)) == codes).all()
    assert ops.unpack(ops.pack(mx.zeros((0, 32), mx.uint32), bits), bits).shape == (0, 32)


@DTYPES
@BITS
@pytest.mark.parametrize("group", [32, 64, 128])
def test_quantize_and_dequantize_have_mlx_bits(dtype, bits, group):
    with mx.stream(mx.cpu):  # on a GPU MLX rounds otherwise
        w = groups(group).astype(dtype)
        w = mx.concatenate([w, w[::-1]], -1)
        got, want = ops.quantize(w, group, bits), mx.quantize(w, group_size=group, bits=bits)
        assert all(map(same_bits, got, want))
        dense = ops.dequantize(ops.Linear(got[0], None, *got[1:], ops.Quantization(group, bits)))
        assert same_bits(dense, mx.dequantize(*want, group_size=group, bits=bits))


def test_experts_and_vectors():
    w = mx.random.normal((2, 3, 64))
    parts = ops.quantize(w, 32, 4)
    assert [p.shape for p in parts] == [(2, 3, 8), (2, 3, 2), (2, 3, 2)]
    packing = ops.Quantization(32, 4)
    dense = ops.dequantize(ops.Linear(parts[0], None, *parts[1:], packing))
    alone = ops.quantize(w[1, 2], 32, 4)
    assert mx.array_equal(ops.dequantize(ops.Linear(alone[0], None, *alone[1:], packing)), dense[1, 2])


@pytest.mark.parametrize(
    "w, group, said",
    [
        (mx.ones((2, 64), mx.int32), 64, "w is mlx.core.int32"),
        (mx.ones((2, 48)), 48, "group_size is 48"),
        (mx.ones((2, 48)), 32, "multiple of 32"),
        (mx.ones(64), 64, r"w has shape \(64,\)"),
    ],
)
def test_quantize_w4_names_what_it_does_not_take(w, group, said):
    with pytest.raises(ValueError, match=said):
        quantize_w4(w, group)


def test_quantize_w4_of_no_rows():
    assert [p.shape for p in quantize_w4(mx.ones((0, 128)), 64)] == [(0, 16), (0, 2), (0, 2)]


def table(dtype=mx.float32, mode="affine", group=32):
    parts = mx.quantize(mx.random.normal((9, 64)).astype(dtype), group_size=group, bits=4, mode=mode)
    return ops.Linear(parts[0], None, *(*parts[1:], None)[:2], ops.Quantization(group, 4, mode))


def test_embed_reads_no_row_that_is_not_there():
    tokens = mx.array([[8, 9, 2**31 - 1, -(2**31)]])
    with kernels.metal.host_checked() as reports:
        got = embed_w4(tokens, table(), mx.float32)[0]
    assert not reports[0].findings and all(mx.array_equal(row, got[0]) for row in got)
    assert embed_w4(mx.zeros((2, 0), mx.int32), table(), mx.float16).shape == (2, 0, 64)


@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
@pytest.mark.parametrize("preference", ["ours", "mlx", "reference"])
def test_embed_has_one_answer(mode, preference, monkeypatch):
    monkeypatch.setenv("TINYMLX_KERNELS", preference)
    w, tokens = table(mode=mode), mx.array([[3, 0], [8, 3]])
    want = mx.dequantize(w.weight, w.scales, w.biases, group_size=32, bits=4, mode=mode)[tokens].astype(mx.float16)
    assert mx.allclose(kernels.embed(tokens, w, mx.float16), want, rtol=2e-3, atol=0)
    dense = ops.Linear(mx.random.normal((9, 64)))
    assert mx.array_equal(kernels.embed(tokens, dense, mx.float16), dense.weight[tokens].astype(mx.float16))


def test_embed_w4_names_what_it_does_not_take():
    with pytest.raises(ValueError, match="packed as None"):
        embed_w4(mx.array([[1]]), ops.Linear(mx.ones((2, 64))), mx.float32)
    with pytest.raises(ValueError, match="int32"):
        embed_w4(mx.array([[1]]), table(), mx.int32)
