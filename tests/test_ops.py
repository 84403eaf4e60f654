"""Each fine op against float64 NumPy written from its formula; bounds follow from the dtype's rounding."""

import mlx.core as mx
import numpy as np
import pytest

from tinymlx import ops

pytestmark = pytest.mark.capability("ops equal float64")

SIZES = (1, 7, 8, 31, 33)
# Unit roundoff times a small factor for the few roundings on the way.
BOUND = {mx.float32: 2e-6, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}
DTYPES = pytest.mark.parametrize("dtype", BOUND, ids=lambda d: str(d).rpartition(".")[2])


def draw(*shape, seed=0, dtype=mx.float32):
    return mx.array(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def f64(x):
    return np.array(x.astype(mx.float32)).astype(np.float64)


def assert_close(got, want, bound):
    got = f64(got)
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= bound * max(np.abs(want).max(), 1e-30)


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@DTYPES
@pytest.mark.parametrize("K", SIZES)
def test_rms_norm(K, dtype):
    x, w = draw(3, K, dtype=dtype) * 5, draw(K, seed=1, dtype=dtype)
    want = f64(x) / np.sqrt((f64(x) ** 2).mean(-1, keepdims=True) + 1e-6) * f64(w)
    got = ops.rms_norm(x, w, 1e-6)
    assert got.dtype == dtype
    assert_close(got, want, BOUND[dtype])


def test_rms_norm_squares_in_float32():
    """300 squared is more than float16 holds: the norm would be 0."""
    x = mx.full((1, 64), 300.0, mx.float16)
    assert_close(ops.rms_norm(x, mx.ones(64, mx.float16), 0.0), np.ones((1, 64)), 1e-3)


@pytest.mark.parametrize("L", SIZES)
def test_rope_turns_pairs_as_complex_numbers(L):
    x = draw(2, 3, L, 8)
    periods, scale = ops.rope_periods(8, 10000.0)
    positions = np.array([[5], [0]]) + np.arange(L)
    z = f64(x)[..., :4] + 1j * f64(x)[..., 4:]
    z = z * np.exp(1j * positions[:, None, :, None] * 10000.0 ** -(np.arange(4) / 4))
    got = ops.rope(x, mx.array(positions), periods, scale)
    assert_close(got, np.concatenate([z.real, z.imag], -1), 2e-6)


def test_rope_depends_on_the_distance_alone():
    q, k = draw(1, 1, 1, 64), draw(1, 1, 1, 64, seed=1)
    periods, _ = ops.rope_periods(64, 1e6)

    def score(at_q, at_k):
        turned = [ops.rope(x, mx.array([[at]]), periods) for x, at in ((q, at_q), (k, at_k))]
        return (turned[0] * turned[1]).sum().item()

    assert score(17, 4) == pytest.approx(score(113, 100), rel=1e-4)
    assert score(17, 4) != pytest.approx(score(4, 17), rel=1e-2)


def test_unknown_rope_type_is_refused():
    with pytest.raises(ValueError, match="dynamic"):
        ops.rope_periods(8, 1e4, {"rope_type": "dynamic"})


@DTYPES
@pytest.mark.parametrize("L, T", [(1, 1), (1, 33), (7, 7), (8, 31), (33, 33)])
@pytest.mark.parametrize("H, G", [(1, 1), (4, 2), (8, 1)])
def test_attention(L, T, H, G, dtype):
    q, k, v = (
        draw(2, H, L, 16, dtype=dtype),
        draw(2, G, T, 16, seed=1, dtype=dtype),
        draw(2, G, T, 16, seed=2, dtype=dtype),
    )
    mask = np.random.default_rng(3).random((2, 1, L, T)) < 0.7
    mask[..., 0] = True
    y, lse = ops.grouped_query_attention(q, k, v, scale=0.25, mask=mx.array(mask))
    keys, values = np.repeat(f64(k), H // G, 1), np.repeat(f64(v), H // G, 1)
    scores = np.where(mask, 0.25 * f64(q) @ keys.swapaxes(-1, -2), -np.inf)
    assert_close(y, softmax(scores) @ values, BOUND[dtype])
    assert_close(lse, np.log(np.exp(scores).sum(-1)), 1e-5)
    assert y.dtype == dtype and lse.dtype == mx.float32


def test_attention_survives_large_scores_and_rows_that_see_nothing():
    q, k, v = draw(1, 1, 3, 8) * 300, draw(1, 1, 4, 8) * 300, draw(1, 1, 4, 8)
    mask = np.ones((1, 1, 3, 4), bool)
    mask[0, 0, 1] = False
    y, lse = ops.scaled_dot_product_attention(q, k, v, scale=1.0, mask=mx.array(mask))
    assert np.isfinite(f64(y)).all()
    assert (f64(y)[0, 0, 1] == 0).all() and lse[0, 0, 1].item() == -np.inf


@pytest.mark.parametrize("L", SIZES)
@pytest.mark.parametrize("window", [None, 1, 5, 100])
def test_attention_mask(L, window):
    lengths, slots = [0, 3, 16], 16
    mask = np.array(ops.attention_mask(mx.array(lengths), slots, L, window))
    assert mask.shape == (3, 1, L, slots + L)
    for b, cached in enumerate(lengths):
        for i in range(L):
            for j in range(slots + L):
                position = j if j < slots else cached + j - slots
                real = j < cached or j >= slots
                visible = real and position <= cached + i and (window is None or cached + i - position < window)
                assert mask[b, 0, i, j] == visible, (b, i, j)


def test_gather_pages_follows_the_table():
    pool = draw(6, 2, 4, 3)
    pages = np.array([[5, 0, 5], [1, 2, 3]])
    got = np.array(ops.gather_pages(pool, mx.array(pages), mx.arange(2)))
    for b in range(2):
        for slot in range(12):
            assert (got[b, :, slot] == np.array(pool)[pages[b, slot // 4], :, slot % 4]).all()


def test_paged_attention_never_sees_hidden_slots():
    q, k_new, v_new = draw(1, 2, 1, 8), draw(1, 1, 1, 8, seed=1), draw(1, 1, 1, 8, seed=2)
    pages = draw(1, 1, 8, 8, seed=3)
    mask = ops.attention_mask(mx.array([3]), 8, 1)
    spoiled = mx.concatenate([pages[:, :, :3], mx.full((1, 1, 5, 8), mx.nan)], axis=2)
    clean, _ = ops.paged_attention(q, k_new, v_new, pages, pages, mask, scale=1.0)
    got, _ = ops.paged_attention(q, k_new, v_new, spoiled, spoiled, mask, scale=1.0)
    assert mx.array_equal(got, clean)


@DTYPES
@pytest.mark.parametrize("K, N", [(1, 1), (7, 8), (31, 33)])
def test_linear(K, N, dtype):
    x, w, bias = draw(2, 3, K, dtype=dtype), draw(N, K, seed=1, dtype=dtype), draw(N, seed=2, dtype=dtype)
    got = ops.linear(x, ops.Linear(w, bias))
    assert got.dtype == dtype
    assert_close(got, f64(x) @ f64(w).T + f64(bias), BOUND[dtype] * 2)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_dequantize_unpacks_scale_times_code_plus_bias(bits, group_size):
    codes = np.random.default_rng(0).integers(0, 2**bits, (5, 256))
    scales = np.random.default_rng(1).random((5, 256 // group_size)).astype(np.float32)
    biases = scales - 1
    stream = np.zeros((5, 256 * bits), np.uint8)  # codes lie bit after bit, lowest first
    for bit in range(bits):
        stream[:, bit::bits] = (codes >> bit) & 1
    packed = np.packbits(stream, axis=1, bitorder="little").view(np.uint32)
    w = ops.Linear(mx.array(packed), None, mx.array(scales), mx.array(biases), ops.Quantization(group_size, bits))
    want = codes * np.repeat(scales, group_size, 1).astype(np.float64) + np.repeat(biases, group_size, 1)
    assert_close(ops.dequantize(w), want, 2e-6)
    rows = ops.embedding(mx.array([[4, 0]]), w)
    assert_close(rows, want[[4, 0]][None], 2e-6)


def test_lora_and_dora():
    x, w = draw(3, 7), draw(5, 7, seed=1)
    a, b = draw(2, 7, seed=2), draw(5, 2, seed=3)
    column = draw(5, seed=4)
    delta = f64(w) + 3.0 * f64(b) @ f64(a)
    assert_close(ops.linear(x, ops.Linear(w, lora=ops.Lora(a, b, 3.0))), f64(x) @ delta.T, 4e-6)
    bias = draw(5, seed=5)
    got = ops.linear(x, ops.Linear(w, bias, lora=ops.Lora(a, b, 3.0, column)))
    assert_close(got, f64(column) * (f64(x) @ delta.T) + f64(bias), 4e-6)


def test_swiglu():
    gate, up = draw(3, 33) * 8, draw(3, 33, seed=1)
    assert_close(ops.swiglu(gate, up), f64(gate) / (1 + np.exp(-f64(gate))) * f64(up), 2e-6)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_mixture_of_experts(top_k, normalize):
    E, K, N = 5, 7, 9
    x, router = draw(2, 3, K), draw(E, K, seed=1)
    gate, up, down = draw(E, N, K, seed=2), draw(E, N, K, seed=3), draw(E, K, N, seed=4)
    want = np.zeros((2, 3, K))
    for place in np.ndindex(2, 3):
        token = f64(x)[place]
        shares = softmax(f64(router) @ token)
        chosen = np.argsort(-shares)[:top_k]
        total = shares[chosen].sum() if normalize else 1.0
        for e in chosen:
            g = f64(gate)[e] @ token
            want[place] += shares[e] / total * (f64(down)[e] @ (g / (1 + np.exp(-g)) * (f64(up)[e] @ token)))
    linears = [ops.Linear(w) for w in (router, gate, up, down)]
    assert_close(ops.mixture_of_experts(x, *linears, top_k=top_k, normalize=normalize), want, 4e-6)
