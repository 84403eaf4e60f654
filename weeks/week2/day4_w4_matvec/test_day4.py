"""Day 2.4 against NumPy, through the product's wrapper, which calls the kernel as the engine does. One row unless a test says otherwise.

U is what one rounding costs in float32; bounds count roundings. On its way a product x (s q + b) is rounded itself, 32 times in the sums of
a block, 3 times with scale and bias, once a block of 1024, 5 times by simd_sum, once a split, twice at the end.
"""

import mlx.core as mx
import numpy as np
import pytest

from tinymlx.kernels.metal import MetalKernel
from tinymlx.kernels.w4_matvec import w4_matvec
from tinymlx.learn.grading import assert_bytes, assert_close, assert_true, roundoff, to_float64
from tinymlx.ops import Linear, Quantization

U = roundoff(mx.float32)
BITS = 4


def packed(rng, N, K, group, dtype):
    """Any numbers of 4 bits, and scales and biases as they come of a normal weight."""
    words = mx.array(rng.integers(0, 2**32, (N, K // 8), dtype=np.uint32))
    scales = mx.array(rng.uniform(0.2, 0.4, (N, K // group)).astype(np.float32))
    biases = mx.array(rng.uniform(-3, -1, (N, K // group)).astype(np.float32))
    return Linear(words, None, scales.astype(dtype), biases.astype(dtype), Quantization(group, BITS))


def parts(w):
    """(scale * q, bias) of every weight, [N, K] in float64."""
    words = np.array(w.weight)
    q = (words[..., None] >> np.arange(0, 32, BITS, dtype=np.uint32) & 15).reshape(len(words), -1)
    scales, biases = (np.repeat(to_float64(a), w.quantization.group_size, 1) for a in (w.scales, w.biases))
    return scales * q, biases


def wanted(x, w):
    """x W^T in float64, and how far a kernel may be off before its result is rounded to x's dtype."""
    scaled, biases = parts(w)
    x = to_float64(x)
    return x @ (scaled + biases).T, (46 + x.shape[1] / 1024) * U * (np.abs(x) @ (scaled + np.abs(biases)).T)


def check(subject, x, w):
    y = subject.run(w4_matvec, x, w)
    want, bound = wanted(x, w)
    assert_close(y, want, bound + roundoff(x.dtype) * (np.abs(want) + bound), dtype=x.dtype, what="y")


def assert_read_once(subject, w):
    for name, array in (("w", w.weight), ("scales", w.scales), ("biases", w.biases)):
        assert_bytes(subject.traffic[name].read, array.nbytes, 1.05, name)


class TestTask1Nibble:
    KERNEL = MetalKernel(
        "w4_matvec",
        inputs=["words"],
        outputs=["y"],
        body="""  const uint at = thread_position_in_grid.x;
  for (int i = 0; i < 8; i++) {
    y[8 * at + i] = nibble(words[at], i);
  }
""",
    )

    def test_every_number_in_every_place(self, subject, rng):
        """All sixteen numbers in all eight places of a word are exact, whatever stands in the other places."""
        codes = rng.integers(0, 16, (128, 8), dtype=np.uint32)
        for at in range(128):
            codes[at, at % 8] = at // 8
        words = mx.array((codes << np.arange(0, 32, 4, dtype=np.uint32)).sum(1).astype(np.uint32))
        launch = {"template": {}, "grid": (128, 1, 1), "threadgroup": (32, 1, 1)}
        y = subject.run(self.KERNEL, words, **launch, shapes=[(128, 8)], dtypes=[mx.float32])[0]
        wrong = np.argwhere(np.array(y) != codes)
        at, i = wrong[0] if len(wrong) else (0, 0)
        which = f"{len(wrong)} of {codes.size} are another number, the first is number {i} of the word {words[int(at)].item():#010x}"
        assert_true(not len(wrong), which, expected=f"{codes[at, i]}.0", got=f"{y[int(at), int(i)].item():.9g}")


class TestTask2Loads:
    GROUPS = pytest.mark.parametrize(
        "group, dtype, K", [(32, mx.float32, 1056), (64, mx.bfloat16, 1088), (128, mx.float32, 1152)]
    )

    @GROUPS
    def test_groups(self, subject, rng, draw, group, dtype, K):
        """Each lane meets the scale and the bias of its own group and row. K fills one block of 1024, and a few lanes of a second."""
        check(subject, draw(1, K, dtype=dtype), packed(rng, 8, K, group, dtype))

    @GROUPS
    def test_all_is_read_once(self, subject, rng, draw, group, dtype, K):
        """Each packed word, scale and bias is read by one lane: at most 1.05 times their bytes. The rest get them by a shuffle."""
        w = packed(rng, 8, K, group, dtype)
        subject.run(w4_matvec, draw(1, K, dtype=dtype), w)
        assert_read_once(subject, w)


class TestTask3Products:
    def test_along_k_and_beyond_the_last_row(self, subject, rng, draw):
        """Two simdgroups share three blocks, the last one not full; there are 9 rows for tiles of 4. All is added up in float."""
        check(subject, draw(1, 2112), packed(rng, 9, 2112, 64, mx.float32))

    def test_three_rows_of_x(self, subject, rng, draw):
        """Row m of x is at m K. Three rows together read the weights once, not three times."""
        x, w = draw(3, 1152, dtype=mx.bfloat16), packed(rng, 16, 1152, 128, mx.bfloat16)
        check(subject, x, w)
        assert_read_once(subject, w)

    def test_x_is_read_once_a_tile(self, subject, rng, draw):
        """Eight numbers of x serve all 4 outputs of a tile. (Lanes behind K read the first of x: whole blocks of 1024 count.)"""
        x, w = draw(3, 1152, dtype=mx.bfloat16), packed(rng, 16, 1152, 128, mx.bfloat16)
        subject.run(w4_matvec, x, w)
        assert_bytes(subject.traffic["x"].read, 3 * 2048 * 2, 16 // 4, "x")

    def test_two_weights_and_a_norm(self, subject, rng, draw):
        """Half of a tile's rows are a's, half b's. With NORM x is multiplied by `weight`, and squares are those of x before it."""
        kernel = MetalKernel(
            "w4_matvec",
            inputs=["x", "weight", "wa", "sa", "ba", "wb", "sb", "bb"],
            outputs=["y"],
            body="""  const uint lane = thread_index_in_simdgroup;
  float total[4][1], squares[1];
  const Packed<float> a{wa, sa, ba}, b{wb, sb, bb};
  dot_rows<1, 64, 4, false, true, 2>(x, weight, a, 1, b, 2, 1088, 8, 0, 1, lane, total, squares);
  for (int n = 0; n < 5; n++) {
    const float sum = simd_sum(n < 4 ? total[n % 4][0] : squares[0]);
    if (lane == 0) {
      y[n] = sum;
    }
  }
""",
        )
        x, weight = draw(1, 1088), draw(1088)
        a, b = packed(rng, 8, 1088, 64, mx.float32), packed(rng, 8, 1088, 64, mx.float32)
        launch = {
            "template": {},
            "grid": (32, 1, 1),
            "threadgroup": (32, 1, 1),
            "shapes": [(5,)],
            "dtypes": [mx.float32],
        }
        arrays = (array for w in (a, b) for array in (w.weight, w.scales, w.biases))
        y = subject.run(kernel, x, weight, *arrays, **launch)[0]
        weighed = mx.array(to_float64(x) * to_float64(weight)).astype(mx.float32)
        (of_a, bound_a), (of_b, bound_b) = wanted(weighed, a), wanted(weighed, b)
        squares = (to_float64(x) ** 2).sum()
        want = np.concatenate([of_a[0, 1:3], of_b[0, 2:4], [squares]])
        bound = np.concatenate([bound_a[0, 1:3], bound_b[0, 2:4], [80 * U * squares]])
        assert_close(y, want, bound, dtype=mx.float32, what="totals of a, of b, and squares")

    def test_an_idle_tile_reads_nothing(self, subject, rng, draw):
        """9 rows are three tiles; the second threadgroup has a fourth, which reads neither x nor weights. (The third reads row 8 four times.)"""
        w = packed(rng, 9, 2112, 64, mx.float32)
        subject.run(w4_matvec, draw(1, 2112), w)
        for name, array in (("w", w.weight), ("scales", w.scales), ("biases", w.biases)):
            assert_bytes(subject.traffic[name].read, array.nbytes // 9 * 12, 1.05, f"{name}, rows of three tiles")
        assert_bytes(subject.traffic["x"].read, 3 * 3 * 1024 * 4, 1, "x, blocks of three tiles")


class TestTask4Outputs:
    def test_nine_rows_and_nine_outputs(self, subject, rng, draw):
        """A tile has 4 outputs for each of 9 rows, more than a simdgroup has lanes. Of 9 outputs the last tile keeps one."""
        check(subject, draw(9, 96), packed(rng, 9, 96, 32, mx.float32))

    def test_two_simdgroups_share_k(self, subject, rng, draw):
        """From K = 2048 on a tile's k is split among two simdgroups: their sums are added, each tile's its own. With 9 rows both store outputs."""
        check(subject, draw(9, 2112), packed(rng, 9, 2112, 64, mx.float32))

    def test_all_is_stored_once(self, subject, rng, draw):
        """Of 9 rows and 9 outputs, and of the sums of a simdgroup, each is stored by one lane, once: more stores of the same value are in vain."""
        subject.run(w4_matvec, x := draw(9, 2112), packed(rng, 9, 2112, 64, mx.float32))
        subject.assert_stored_once()
        assert_bytes(subject.traffic["y"].written, x.shape[0] * 9 * 4, 1, "y, written")

    def test_delta_and_residual(self, subject):
        """The product is 257, which bfloat16 does not have. delta is added before rounding, residual after it, as unfused layers do."""
        codes = np.full((9, 64), 4, np.uint32)
        codes[:, 7] = 5
        words = (codes.reshape(9, 8, 8) << np.arange(0, 32, 4, dtype=np.uint32)).sum(2).astype(np.uint32)
        scales, biases = mx.ones((9, 1), mx.bfloat16), mx.zeros((9, 1), mx.bfloat16)
        w = Linear(mx.array(words), None, scales, biases, Quantization(64, BITS))
        delta = np.array([[0, -256, -256, 0, -255, 0, 0, -1, -130]], np.float32)
        residual = np.array([[0, 0, -1, -256, -2, 3, -256, -256, 8]], np.float32)
        added = {"delta": mx.array(delta).astype(mx.bfloat16), "residual": mx.array(residual).astype(mx.bfloat16)}
        y = subject.run(w4_matvec, mx.ones((1, 64), mx.bfloat16), w, **added)
        want = mx.array(delta + 257).astype(mx.bfloat16) + added["residual"]
        assert_close(y, to_float64(want), 0.0, dtype=mx.bfloat16, what="y")
