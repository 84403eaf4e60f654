"""Day 2.6 beside float64: K of 1, 33 and 1024, heads of 6, 80 and 128, float32 and bfloat16. Few combinations, for each is compiled."""

import mlx.core as mx
import numpy as np
import pytest

from tinymlx.kernels.metal import MetalKernel
from tinymlx.kernels.qk_norm_rope import ours as qk_norm_rope
from tinymlx.kernels.rms_norm import rms_norm
from tinymlx.learn.grading import assert_bytes, assert_close, assert_true, roundoff, to_float64

U = roundoff(mx.float32)


def rounded(x, dtype):
    """Float64 to the nearest of dtype, and back."""
    return to_float64(mx.array(x.astype(np.float32)).astype(dtype))


class TestTask1SumOfThreadgroup:
    SUM = MetalKernel(
        "rms_norm",
        inputs=["x"],
        outputs=["y"],
        body="""  threadgroup float partial[8];
  const uint i = threadgroup_position_in_grid.x * 256 + thread_index_in_threadgroup;
  y[i] = sum_of_threadgroup<8>(x[i], thread_index_in_simdgroup, simdgroup_index_in_threadgroup, partial);
""",
    )

    def run(self, subject, x):
        launch = {"template": {}, "grid": (x.size, 1, 1), "threadgroup": (256, 1, 1)}
        return subject.run(self.SUM, x, **launch, shapes=[x.shape], dtypes=[mx.float32])[0]

    def test_every_thread_gets_it(self, subject, rng):
        """Whole numbers, eight simdgroups: each of the 256 threads must get the exact sum of all of them, when all have come. A place of `partial` is
        written once."""
        x = rng.integers(-999, 1000, (3, 256)).astype(np.float64)
        y = self.run(subject, mx.array(x.astype(np.float32)))
        assert_close(y, np.repeat(x.sum(1, keepdims=True), 256, 1), 0, dtype=mx.float32, what="the sum, of each thread")
        subject.assert_stored_once()

    def test_against_float64(self, subject, draw):
        """Five additions in a simdgroup, eight over them: 13 roundings at most."""
        x = draw(2, 256)
        want = np.repeat(to_float64(x).sum(1, keepdims=True), 256, 1)
        bound = 13 * U * np.abs(to_float64(x)).sum(1, keepdims=True)
        assert_close(self.run(subject, x), want, bound, dtype=mx.float32, what="the sum")

    def test_in_the_norm(self, subject, draw):
        """Three rows of 1,024, one threadgroup of eight simdgroups each, and three of 33, one of a single simdgroup: lanes have an order only by
        barriers."""
        for K in (1024, 33):
            norm_against_float64(subject, draw(3, K), draw(K))


def norm_against_float64(subject, x, weight, residual=None, eps=1e-6):
    """h to the bit; y as near as a mean of squares in float32 allows, with both roundings to x's dtype."""
    got = subject.run(rms_norm, x, weight, eps, residual)
    y, h = (got, None) if residual is None else got
    wide, w = to_float64(x), to_float64(weight)
    if residual is not None:
        wide = rounded(wide + to_float64(residual), x.dtype)
        assert_close(h, wide, 0, dtype=x.dtype, what="h = x + residual")
    n = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps)
    # The sum has at most 20 roundings, its root halves them; mean, eps, rsqrt (2 each at most) and the product make 20 of all.
    error = 20 * U
    if x.dtype == mx.float32:
        assert_close(y, n * w, 1.01 * (error + 2 * U) * np.abs(n * w), dtype=x.dtype, what="y")
    else:  # n may be rounded to either side where it is in the middle; weight times n is exact in float32
        low, high = (rounded(rounded(n * (1 + side * (error + 2 * U)), x.dtype) * w, x.dtype) for side in (-1, 1))
        nearer = np.where(np.abs(to_float64(y) - low) <= np.abs(to_float64(y) - high), low, high)
        assert_close(y, nearer, 0, dtype=x.dtype, what="y")
    once = [(x, "x")] if residual is None else [(x, "x"), (residual, "residual")]
    for array, name in once:
        assert_bytes(subject.traffic[name].read, array.nbytes, 2 if residual is None else 1, name)
    assert_bytes(subject.traffic["y"].written, y.nbytes, 1, "y, written")
    subject.assert_stored_once()


class TestTask2RmsNorm:
    # Two simdgroups a row; each thread leaves the index that it has read last.
    NOTED = MetalKernel(
        "rms_norm",
        inputs=["x", "weight", "eps"],
        outputs=["y", "reads"],
        body="""  struct Noted {
    const device float* at;
    device uint* note;
    float operator[](uint i) const { *note = i; return at[i]; }
  };
  threadgroup float partial[2];
  const uint rank = threadgroup_position_in_grid.x * 64 + thread_index_in_threadgroup;
  reads[rank] = 0;
  rms_norm<float, false, 2>(
      Noted{x, reads + rank}, Noted{x, reads + rank}, weight, eps, y, y, 256, threadgroup_position_in_grid.x,
      thread_index_in_threadgroup, thread_index_in_simdgroup, simdgroup_index_in_threadgroup, partial);
""",
    )

    def test_neighbours_read_neighbours(self, subject, draw):
        """256 numbers by 64 threads, four each: the 32 lanes of a simdgroup must read 2 pieces of 64 bytes at a time, so a thread's own numbers are 64
        apart."""
        launch = {"template": {}, "grid": (128, 1, 1), "threadgroup": (64, 1, 1)}
        shapes, dtypes = [(2, 256), (128,)], [mx.float32, mx.uint32]
        _, reads = subject.run(
            self.NOTED, draw(2, 256), draw(256), mx.full(8, 1e-6), **launch, shapes=shapes, dtypes=dtypes
        )
        pieces = max(len(set(lanes // 16)) for lanes in np.array(reads).reshape(-1, 32))
        assert_true(pieces <= 2, f"32 lanes read in {pieces} pieces of 64 bytes", expected="2", got=str(pieces))

    def test_fewer_numbers_than_threads(self, subject, draw):
        """Two rows of one number: 31 lanes have nothing to read, and still come to the barrier. eps stands under the root."""
        norm_against_float64(subject, mx.array([[1e-3], [-3.0]]), draw(1), eps=1e-6)

    def test_small_numbers_and_zeros(self, subject, draw):
        """33 numbers of some 0.001, whose mean square is as large as eps, and a row of zeros, whose norm is 0."""
        norm_against_float64(subject, draw(3, 33) * mx.array([[1e-3], [1.0], [0.0]]), draw(33))

    def test_residual(self, subject, draw):
        """Three rows of 33 in float32: h is stored, and y is the norm of h. x and residual are read once each."""
        norm_against_float64(subject, draw(3, 33), draw(33), draw(3, 33))

    def test_what_is_rounded_when(self, subject, draw):
        """Seven rows of 1,024 in bfloat16: h is rounded, its squares are of the rounded numbers and summed in float32; h / rms is rounded before it is
        multiplied by the weight, and then again. To the bit, wherever the mean's last bits cannot matter."""
        x, residual = draw(7, 1024, dtype=mx.bfloat16), draw(7, 1024, dtype=mx.bfloat16)
        norm_against_float64(subject, x, draw(1024, dtype=mx.bfloat16), residual)

    def test_without_residual_in_bfloat16(self, subject, draw):
        """Three rows of 1,024: x is read twice at most, and nothing is stored but y."""
        norm_against_float64(subject, draw(3, 1024, dtype=mx.bfloat16), draw(1024, dtype=mx.bfloat16))


def head_kernel(D, norm):
    return MetalKernel(
        "qk_norm_rope",
        inputs=["x", "weight", "eps"],
        outputs=["first", "second"],
        body=f"""  const uint row = threadgroup_position_in_grid.x, lane = thread_index_in_simdgroup;
  float a[{-(-D // 64)}], b[{-(-D // 64)}];
  norm_head<{D}, {str(norm).lower()}>(x + row * {D}, weight, eps, lane, a, b);
  for (int p = 0; p < {-(-D // 64)}; p++) {{
    first[row * {-(-D // 64) * 32} + p * 32 + lane] = a[p];
    second[row * {-(-D // 64) * 32} + p * 32 + lane] = b[p];
  }}
""",
    )


HEADS = {(D, norm): head_kernel(D, norm) for D, norm in ((80, True), (6, True), (80, False))}


def normed_heads(x, weight, eps):
    """[..., D] in float64."""
    wide = to_float64(x)
    return wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps) * to_float64(weight)


class TestTask3NormHead:
    def run(self, subject, x, weight, norm=True):
        rows, D = x.shape
        places = -(-D // 64) * 32
        first, second = subject.run(
            HEADS[D, norm],
            x,
            weight,
            mx.full(8, 1e-3),
            template={},
            grid=(32 * rows, 1, 1),
            threadgroup=(32, 1, 1),
            shapes=[(rows, places)] * 2,
            dtypes=[mx.float32] * 2,
        )
        n = normed_heads(x, weight, 1e-3) if norm else to_float64(x)
        for got, half, name in zip((first, second), np.split(n, 2, -1), ("first", "second")):
            want = np.zeros((rows, places))
            want[:, : D // 2] = half
            # 2 or 4 squares a lane and 5 sums, halved by the root; mean, eps, rsqrt and two products: 16 roundings at most.
            assert_close(got, want, 16 * U * np.abs(want) * norm, dtype=mx.float32, what=f"{name} (row, 32 p + lane)")
        assert_bytes(subject.traffic["x"].read, x.nbytes, 1, "x")

    def test_against_float64(self, subject, draw):
        """Three heads of 80 in bfloat16: two pairs a lane for the first eight lanes, one for the others, zeros behind them. What is in the registers is
        float, not rounded to bfloat16, and the weight is float32 here. x is read once."""
        self.run(subject, draw(3, 80, dtype=mx.bfloat16), draw(80))

    def test_three_pairs(self, subject, draw):
        """Heads of 6: three lanes have a pair each, and all 32 lanes come to the sum. Number 0 is paired with number 3."""
        self.run(subject, draw(5, 6), draw(6))

    def test_without_a_norm(self, subject, draw):
        """Without NORM the numbers are as they are; weight and eps are not read."""
        self.run(subject, draw(3, 80), mx.full(80, mx.nan), norm=False)
        assert_bytes(subject.traffic["weight"].read + subject.traffic["eps"].read, 1, 0, "weight and eps")

    def test_in_the_kernel(self, subject, draw):
        """Three query heads and two of keys, whose weights differ."""
        heads_against_float64(subject, draw, mx.float32, (7, 0), 3)


def heads_against_float64(subject, draw, dtype, offsets, L, D=80, H=3, G=2, eps=1e-3, scale=1.2):
    B, positions = len(offsets), np.array(offsets)[:, None] + np.arange(L)
    q, k = draw(B, L, H * D, dtype=dtype), draw(B, L, G * D, dtype=dtype)
    weights = draw(D, dtype=dtype), draw(D, dtype=dtype)
    periods = mx.array((1e6 ** (np.arange(0, D, 2) / D)).astype(np.float32))
    got = subject.run(qk_norm_rope, q, k, *weights, eps, mx.array(offsets), periods, scale)
    angles = (positions[:, None, :, None] / to_float64(periods)).astype(np.float32).astype(np.float64)  # [B, 1, L, D/2]
    cos, sin = np.cos(angles), np.sin(angles)
    for y, x, weight, name in zip(got, (q, k), weights, ("y_q", "y_k")):
        wide = to_float64(x).reshape(B, L, -1, D).swapaxes(1, 2)
        n = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps) * to_float64(weight)
        a, b = np.split(n, 2, -1)
        want = scale * np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
        # 16 of the norm; cos and sin 4, scale 2 (it is no float32), products and the sum 3: 25 at most, then once to dtype.
        terms = 25 * U * scale * (np.abs(a) + np.abs(b))
        bound = np.concatenate([terms, terms], -1) + 1.01 * np.abs(want) * roundoff(dtype)
        assert_close(y, want, bound, dtype=dtype, what=f"{name} (row, head, token, number)")
        assert_bytes(subject.traffic[name].written, y.nbytes, 1, f"{name}, written")
    for x, name in ((q, "q"), (k, "k")):
        assert_bytes(subject.traffic[name].read, x.nbytes, 1, name)


class TestTask4Rope:
    def test_against_float64(self, subject, draw):
        """Two rows of three tokens, one row at position 100,000 and one at 5; five heads, so that three simdgroups of the last threadgroup have none.
        Every head has its own place in a layout with heads before tokens."""
        heads_against_float64(subject, draw, mx.float32, (100_000, 5), 3)

    def test_rounded_once(self, subject, draw):
        """bfloat16: norm, angle, rotation and scale are float32, and only the result is rounded. bfloat16 has no position 100,001: its neighbours are
        512 apart."""
        heads_against_float64(subject, draw, mx.bfloat16, (100_001, 5), 3)

    @pytest.mark.parametrize("first, second", [(1.0, 0.0), (0.0, 1.0)])
    def test_the_angle_at_100000(self, subject, first, second):
        """Pairs (1, 0) turn to (cos, sin), pairs (0, 1) to (-sin, cos), of the float32 quotient position / period: nothing but it may be rounded before
        sine and cosine. An inverse of the period, rounded on its own, moves such angles by up to 0.004."""
        offsets, D = (100_000, 99_991, 3), 128
        x = mx.concatenate([mx.full((3, 1, 64), first), mx.full((3, 1, 64), second)], -1)
        periods = mx.array((1e6 ** (np.arange(0, D, 2) / D)).astype(np.float32))
        got = subject.run(qk_norm_rope, x, x, None, None, 1e-6, mx.array(offsets), periods, 1.0)
        angles = np.array(offsets, np.float32)[:, None] / np.array(periods)  # float32
        cos, sin = np.cos(angles.astype(np.float64)), np.sin(angles.astype(np.float64))
        want = np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)[:, None, None]
        for y, name in zip(got, ("y_q", "y_k")):
            assert_close(y, want, 8 * U, dtype=mx.float32, what=f"{name} (row, head, token, number)")
