"""Day 2.5 beside float64. Few shapes, for each is compiled: rows 1, 3, 8 and more, outputs that do and do not fill their tiles."""

import mlx.core as mx
import numpy as np
import pytest

from tinymlx.kernels.metal import MetalKernel
from tinymlx.kernels.norm_gate_up import ours as norm_gate_up
from tinymlx.kernels.norm_qkv import ours as norm_qkv
from tinymlx.kernels.w4_matmul import w4_matmul
from tinymlx.learn.grading import assert_bytes, assert_close, assert_same, roundoff, to_float64
from tinymlx.ops import Linear, Lora, Quantization

EPS = 1e-5
U = roundoff(mx.float32)


@pytest.fixture
def pack(draw):
    """pack(N, K, dtype) -> a random weight [N, K] in 4 bits, groups of 64."""

    def packed(N, K, dtype):
        words, scales, biases = mx.quantize(draw(N, K) / K**0.5, group_size=64, bits=4)
        return Linear(words, None, scales.astype(dtype), biases.astype(dtype), Quantization(64, 4))

    return packed


def parts_of(w):
    """Codes, scales and biases of every number, [N, K] each, in float64."""
    codes = np.array(w.weight)[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15
    scales, biases = (np.repeat(to_float64(a), 64, 1) for a in (w.scales, w.biases))
    return codes.reshape(scales.shape).astype(np.float64), scales, biases


def normed(x, weight):
    wide = to_float64(x)
    return wide / np.sqrt((wide**2).mean(-1, keepdims=True) + EPS) * to_float64(weight)


def product(h, w):
    """h W^T, and how far float32 sums may be off: a lane adds 32 numbers a block, for products and squares; at most 100 roundings in all."""
    codes, scales, biases = parts_of(w)
    y = h @ (codes * scales + biases).T
    error = (100 + h.shape[1] / 256) * U * (np.abs(h) @ (codes * np.abs(scales) + np.abs(biases)).T)
    if w.lora is not None:
        a, b = to_float64(w.lora.a), to_float64(w.lora.b)
        y = y + w.lora.scale * h @ a.T @ b.T
        error = error + (2 * h.shape[1] + 50) * U * w.lora.scale * np.abs(h) @ np.abs(a).T @ np.abs(b).T
    return y, error


class TestTask1NormQkv:
    PARTS = MetalKernel(
        "norm_qkv",
        inputs=["sizes"],
        outputs=["which", "first"],
        body="""  const uint2 part = part_of<4>(thread_position_in_grid.x, sizes[0], sizes[1]);
  which[thread_position_in_grid.x] = part.x;
  first[thread_position_in_grid.x] = part.y;
""",
    )

    @pytest.mark.parametrize("NQ, NK", [(10, 5), (8, 4), (1, 33), (31, 1)])
    def test_tiles_in_a_row(self, subject, NQ, NK):
        """Tiles of four: q has ceil(NQ / 4) of them, k and v ceil(NK / 4) each. `first` counts outputs, from 0 again in each of the three."""
        sizes = mx.array([NQ, NK] + [0] * 6, mx.uint32)
        launch = {"template": {}, "grid": (32, 1, 1), "threadgroup": (32, 1, 1)}
        which, first = subject.run(self.PARTS, sizes, **launch, shapes=[(32,)] * 2, dtypes=[mx.uint32] * 2)
        want = [(0, n) for n in range(0, NQ, 4)] + [(part, n) for part in (1, 2) for n in range(0, NK, 4)]
        assert_same(np.array(which)[: len(want)], np.array([part for part, _ in want], np.uint32), what="which")
        assert_same(np.array(first)[: len(want)], np.array([n for _, n in want], np.uint32), what="first")

    def run(self, subject, draw, rows, weights, dtype):
        K = weights[0].weight.shape[1] * 8
        x, weight = draw(rows, K, dtype=dtype), draw(K, dtype=dtype)
        got = subject.run(norm_qkv, x, weight, EPS, *weights)
        for name, y, w in zip("qkv", got, weights):
            want, error = product(normed(x, weight), w)
            assert_close(y, want, error + np.abs(want) * 1.01 * roundoff(dtype), dtype=dtype, what=name)
            assert_bytes(subject.traffic[name].written, y.nbytes, 1, f"{name}, written")

    def test_against_float64(self, subject, draw, pack):
        """Three rows; neither 33 nor 7 outputs fill their last tiles, and a threadgroup has one tile too many. v has an adapter: `dv` is added, and
        zeros to q and k."""
        q, k, v = (pack(N, 192, mx.float32) for N in (33, 7, 7))
        v = v._replace(lora=Lora(draw(2, 192) / 192**0.5, draw(7, 2), 1.5))
        self.run(subject, draw, 3, (q, k, v), mx.float32)

    def test_two_simdgroups_make_a_tile(self, subject, draw, pack):
        """One row of 2,112 numbers, of which two simdgroups take blocks in turn: both finish the tile, and each result is stored by one lane."""
        self.run(subject, draw, 1, [pack(N, 2112, mx.float32) for N in (9, 3, 3)], mx.float32)

    def test_words_are_read_once_for_eight_rows(self, subject, draw, pack):
        """Eight rows in bfloat16; outputs fill their tiles. Each packed word is read once in the launch, whatever the rows."""
        weights = [pack(N, 192, mx.bfloat16) for N in (32, 8, 8)]
        self.run(subject, draw, 8, weights, mx.bfloat16)
        for name, w in zip("qkv", weights):
            assert_bytes(subject.traffic[f"w{name}"].read, w.weight.nbytes, 1, f"w{name}")


def rounded(values, error):
    """What bfloat16 makes of results that may be off by `error`, and where that is certain: not beside the middle of two numbers."""
    low, high = (to_float64(mx.array((values + e).astype(np.float32)).astype(mx.bfloat16)) for e in (-error, error))
    return low, low == high


class TestTask2NormGateUp:
    def run(self, subject, x, weight, gate, up):
        y = subject.run(norm_gate_up, x, weight, EPS, gate, up)
        h, u = normed(x, weight), roundoff(x.dtype)
        (g, g_error), (v, v_error) = product(h, gate), product(h, up)
        g_error, v_error = g_error + np.abs(g) * u, v_error + np.abs(v) * u
        with np.errstate(over="ignore"):
            silu = g / (1 + np.exp(-g))
        # silu is at most 1.1 steep; it and the product are rounded, and exp and a division have 8 roundings.
        silu_error = 1.1 * g_error + np.abs(silu) * (u + 8 * U)
        bound = silu_error * (np.abs(v) + v_error) + np.abs(silu) * v_error + np.abs(silu * v) * u
        assert_close(y, silu * v, 1.02 * bound + 1e-30, dtype=x.dtype, what="y")
        assert_bytes(subject.traffic["y"].written, y.nbytes, 1, "y, written")

    @pytest.mark.parametrize("scale", [1.0, 80.0])
    def test_against_float64(self, subject, draw, pack, scale):
        """Three rows, 33 outputs, gate with an adapter. With 80 times the norm's weight some gates are beyond 88, where exp is infinite in float32."""
        gate, up = (pack(33, 192, mx.float32) for _ in range(2))
        gate = gate._replace(lora=Lora(draw(2, 192) / 192**0.5, draw(33, 2), 1.5))
        self.run(subject, draw(3, 192), draw(192) * scale, gate, up)

    def test_two_simdgroups_make_a_tile(self, subject, draw, pack):
        """One row of 2,112 numbers, of which two simdgroups take blocks in turn: each result is stored by one lane."""
        self.run(subject, draw(1, 2112), draw(2112), *(pack(5, 2112, mx.float32) for _ in range(2)))

    def test_words_are_read_once_for_eight_rows(self, subject, draw, pack):
        """Eight rows in bfloat16: a tile is two rows of gate and two of up, so that each packed word is read once, whatever the rows."""
        gate, up = (pack(16, 192, mx.bfloat16) for _ in range(2))
        self.run(subject, draw(8, 192, dtype=mx.bfloat16), draw(192, dtype=mx.bfloat16), gate, up)
        for name, w in (("wg", gate), ("wu", up)):
            assert_bytes(subject.traffic[name].read, w.weight.nbytes, 1, name)

    def test_each_step_is_rounded(self, subject, draw, pack):
        """g, u and silu(g) are rounded to bfloat16 before they are used, so that y is bit for bit what layers that store them give. More digits are
        another result."""
        gate, up = (pack(16, 192, mx.bfloat16) for _ in range(2))
        x, weight = draw(8, 192, dtype=mx.bfloat16), draw(192, dtype=mx.bfloat16)
        y = subject.run(norm_gate_up, x, weight, EPS, gate, up)
        h = normed(x, weight)
        (g, sure_g), (u, sure_u) = rounded(*product(h, gate)), rounded(*product(h, up))
        silu = g / (1 + np.exp(-g))
        silu, sure_silu = rounded(silu, 8 * U * np.abs(silu))
        want, sure = rounded(silu * u, U * np.abs(silu * u))
        sure &= sure_g & sure_u & sure_silu
        assert_close(y, want, np.where(sure, 0, np.inf), dtype=mx.bfloat16, what="y")


def matmul_against_float64(subject, x, w):
    y = subject.run(w4_matmul, x, w)
    codes, scales, biases = parts_of(w)
    want = to_float64(x) @ (codes * scales + biases).T
    terms = np.abs(to_float64(x)) @ (codes * np.abs(scales) + np.abs(biases)).T
    bound = (x.shape[-1] + 8) * U * terms + np.abs(want) * 1.01 * roundoff(x.dtype)  # one addition a number
    assert_close(y, want, bound, dtype=x.dtype, what="y")


class TestTask3ShareRows:
    # The block goes to y, each place by another thread than the one that brought it.
    BLOCKS = MetalKernel(
        "w4_matmul",
        inputs=["x", "sizes"],
        outputs=["y"],
        body="""  threadgroup Eight<float> shared[32 * 17];
  for (uint block = 0; block < sizes[3]; block++) {
    share_rows<float, 32, 128>(x, sizes[0], block, sizes[1], sizes[2], thread_index_in_threadgroup, shared);
    for (uint i = 127 - thread_index_in_threadgroup; i < 32 * 16; i += 128) {
      for (uint v = 0; v < 8; v++) {
        y[(block * 512 + i) * 8 + v] = shared[i / 16 * 17 + i % 16].values[v];
      }
    }
  }
""",
    )

    @pytest.mark.parametrize("first_row, M, K", [(0, 32, 128), (0, 7, 200), (32, 45, 392), (0, 1, 8)])
    def test_each_eight_has_its_place(self, subject, draw, first_row, M, K):
        """32 rows of each block of 128, by 128 threads: shared[row * 17 + half * 8 + chunk] is an Eight; where x ends stand zeros. Each number of
        these rows is read once."""
        x, blocks = draw(M, K), -(-K // 128)
        sizes = mx.array([first_row, M, K, blocks] + [0] * 4, mx.uint32)
        launch = {"template": {}, "grid": (128, 1, 1), "threadgroup": (128, 1, 1)}
        shape = (blocks, 32, 2, 8, 8)
        (y,) = subject.run(self.BLOCKS, x, sizes, **launch, shapes=[shape], dtypes=[mx.float32])
        want = np.zeros((32, blocks * 128))
        want[: min(M - first_row, 32), :K] = to_float64(x)[first_row : first_row + 32]
        want = want.reshape(32, blocks, 8, 2, 8).transpose(1, 0, 3, 2, 4)  # [block, row, half, chunk, number]
        assert_close(y, want, 0, dtype=mx.float32, what="shared (block, row, half, chunk, number)")
        assert_bytes(subject.traffic["x"].read, x[first_row : first_row + 32].nbytes, 1, "x")

    def test_in_a_product(self, subject, draw, pack):
        """17 rows of bfloat16 times 40 packed outputs, two blocks: `shared` may be overwritten only when all have read the block before."""
        matmul_against_float64(subject, draw(17, 192, dtype=mx.bfloat16), pack(40, 192, mx.bfloat16))


class TestTask4MultiplyRows:
    def test_small_integers(self, subject, rng):
        """Weights 0 to 15 and small whole x: all sums are exact, so each must be. The lane layout says who brings which number."""
        codes = rng.integers(0, 16, (33, 24, 8)).astype(np.uint32)
        words = (codes << (4 * np.arange(8, dtype=np.uint32))).sum(-1).astype(np.uint32)
        w = Linear(mx.array(words), None, mx.ones((33, 3)), mx.zeros((33, 3)), Quantization(64, 4))
        x = rng.integers(-9, 10, (3, 192)).astype(np.float64)
        y = subject.run(w4_matmul, mx.array(x.astype(np.float32)), w)
        assert_close(y, x @ codes.reshape(33, 192).T.astype(np.float64), 0, dtype=mx.float32, what="y")

    def test_more_than_sixteen_rows(self, subject, draw, pack):
        """17 rows: sum[1] is rows 16 to 31, multiplied by the same `right`. Rows that x has not are zeros in `shared`, and are multiplied too."""
        matmul_against_float64(subject, draw(17, 192, dtype=mx.bfloat16), pack(40, 192, mx.bfloat16))
