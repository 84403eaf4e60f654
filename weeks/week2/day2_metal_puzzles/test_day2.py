"""Day 2.2 against NumPy. Each puzzle is a function that a one-line kernel calls; sizes travel in an array, so that it compiles once.

U is what one rounding costs in float32; each bound counts roundings. Where nothing is rounded, results must be equal.
"""

import mlx.core as mx
import numpy as np
import pytest

from tinymlx.kernels.metal import MetalKernel
from tinymlx.learn.grading import assert_bytes, assert_close, assert_same, assert_true, roundoff, to_float64

U = roundoff(mx.float32)
SIZES = pytest.mark.parametrize("n", [1, 7, 8, 31, 33, 100])


def puzzle(inputs, body, outputs="y"):
    return MetalKernel(
        "day2_metal_puzzles", inputs=[*inputs.split(), "size"], outputs=outputs.split(), body=f"  {body}\n"
    )


I = "thread_position_in_grid.x"
THREAD = "thread_index_in_threadgroup"
ROW = "threadgroup_position_in_grid.x"
LANE = "thread_index_in_simdgroup"
SIMDGROUP = "simdgroup_index_in_threadgroup"
TILE = "threadgroup_position_in_grid.xy, thread_position_in_threadgroup.xy"


def up(n, multiple):
    return -(-n // multiple) * multiple


def launch(subject, kernel, inputs, sizes, shapes, grid, threadgroup, dtypes=(mx.float32,)):
    """Runs a puzzle watched; its outputs, or the only one."""
    grid, threadgroup = ((*(axes if isinstance(axes, tuple) else (axes,)), 1, 1)[:3] for axes in (grid, threadgroup))
    size = mx.array([*sizes, *[0] * 8][:8], mx.uint32)
    launch = {"template": {}, "grid": grid, "threadgroup": threadgroup, "shapes": shapes, "dtypes": list(dtypes)}
    outputs = subject.run(kernel, *inputs, size, **launch)
    return outputs[0] if len(outputs) == 1 else outputs


class TestTask1Map:
    KERNEL = puzzle("x", f"map(x, y, {I});")

    @SIZES
    def test_every_element(self, subject, draw, n):
        """y[i] = 3 x[i] + 1. There are exactly as many threads as elements, and thread i writes element i."""
        x = draw(n)
        y = launch(subject, self.KERNEL, [x], [n], [(n,)], n, 32)
        want = 3 * to_float64(x) + 1
        assert_close(y, want, 2 * U * (3 * np.abs(to_float64(x)) + 1), dtype=mx.float32, what="y")  # product, sum


class TestTask2Zip:
    KERNEL = puzzle("a b", f"zip(a, b, y, {I});")

    @SIZES
    def test_two_inputs(self, subject, draw, n):
        """y[i] = a[i] b[i]."""
        a, b = draw(n), draw(n)
        y = launch(subject, self.KERNEL, [a, b], [n], [(n,)], n, 32)
        want = to_float64(a) * to_float64(b)
        assert_close(y, want, U * np.abs(want), dtype=mx.float32, what="y")


class TestTask3Guarded:
    KERNEL = puzzle("x", f"guarded(x, y, size[0], {I});")

    @pytest.mark.parametrize("n", [8, 31, 33, 64, 100])
    def test_more_threads_than_elements(self, subject, draw, n):
        """y[i] = max(x[i], 0) for i < n. Threads come in whole threadgroups: those from n on must neither read nor write."""
        x = draw(n)
        y = launch(subject, self.KERNEL, [x], [n], [(n,)], up(n + 1, 32), 32)
        assert_same(y, np.maximum(np.array(x), 0), what="y")


class TestTask4OuterSum:
    KERNEL = puzzle("a b", "outer_sum(a, b, y, size[0], size[1], thread_position_in_grid.xy);")

    @pytest.mark.parametrize("rows, columns", [(1, 8), (8, 1), (31, 33), (9, 7), (16, 8)])
    def test_rows_and_columns(self, subject, draw, rows, columns):
        """y[r, c] = a[r] + b[c], [rows, columns]. at.x counts columns, at.y rows; the grid is rounded up to 8 in both."""
        a, b = draw(rows), draw(columns)
        y = launch(
            subject, self.KERNEL, [a, b], [rows, columns], [(rows, columns)], (up(columns, 8), up(rows, 8)), (8, 8)
        )
        want = to_float64(a)[:, None] + to_float64(b)
        assert_close(y, want, U * np.abs(want), dtype=mx.float32, what="y")


class TestTask5Stencil:
    KERNEL = puzzle("x", f"threadgroup float tile[66];\n  stencil(x, y, size[0], {I}, {THREAD}, 64, tile);")

    def run(self, subject, x):
        return launch(subject, self.KERNEL, [x], [x.size], [x.shape], up(x.size, 64), 64)

    @pytest.mark.parametrize("n", [1, 7, 63, 64, 65, 200])
    def test_mean_of_three(self, subject, draw, n):
        """y[i] = (x[i-1] + x[i] + x[i+1]) / 3, where x is 0 outside. Tiles of 64 meet: their border numbers are needed by both."""
        x = draw(n)
        wide = np.pad(to_float64(x), 1)
        parts = np.stack([wide[:-2], wide[1:-1], wide[2:]])
        bound = 4 * U * np.abs(parts).sum(0)  # two sums, a division
        assert_close(self.run(subject, x), parts.sum(0) / 3, bound, dtype=mx.float32, what="y")

    def test_each_number_is_read_once(self, subject, draw):
        """A thread brings its own number into the tile and takes its neighbours' from there: 66 reads for 64 results, not 192."""
        x = draw(640)
        self.run(subject, x)
        assert_bytes(subject.traffic["x"].read, x.nbytes, 66 / 64, "x")


class TestTask6SimdTotal:
    KERNEL = puzzle("x", f"simd_total(x, y, size[0], {ROW}, {LANE});")

    @pytest.mark.parametrize("K", [1, 7, 31, 32, 33, 100])
    def test_sum_of_a_row(self, subject, draw, K):
        """y[r] is the sum of row r, by 32 lanes: each adds every 32nd number, then the lanes add up what they have."""
        x = draw(9, K)
        y = launch(subject, self.KERNEL, [x], [K], [(9,)], 9 * 32, 32)
        bound = (K / 32 + 6) * U * np.abs(to_float64(x)).sum(1)
        assert_close(y, to_float64(x).sum(1), bound, dtype=mx.float32, what="y")
        assert_bytes(subject.traffic["x"].read, x.nbytes, 1, "x")


class TestTask7BlockTotal:
    KERNEL = puzzle(
        "x",
        f"threadgroup float partial[8];\n  block_total(x, y, size[0], {ROW}, {THREAD}, {LANE}, {SIMDGROUP}, 8, partial);",
    )

    @pytest.mark.parametrize("K", [1, 33, 256, 1000])
    def test_sum_over_simdgroups(self, subject, draw, K):
        """y[r] is the sum of row r, by 8 simdgroups. What one writes to threadgroup memory another may read only after a barrier."""
        x = draw(9, K)
        y = launch(subject, self.KERNEL, [x], [K], [(9,)], 9 * 256, 256)
        bound = (K / 256 + 12) * U * np.abs(to_float64(x)).sum(1)
        assert_close(y, to_float64(x).sum(1), bound, dtype=mx.float32, what="y")


class TestTask8Transposed:
    # Notes beside each access where it went: 16 x 16 threads, in each threadgroup two rows of 16 are a simdgroup.
    KERNEL = MetalKernel(
        "day2_metal_puzzles",
        inputs=["x", "size"],
        outputs=["y", "reads", "writes"],
        body=f"""  struct From {{
    const device float* at;
    device uint* note;
    float operator[](uint i) const {{ *note = i; return at[i]; }}
  }};
  struct To {{
    device float* at;
    device uint* note;
    device float& operator[](uint i) const {{ *note = i; return at[i]; }}
  }};
  threadgroup float tile[16 * 17];
  const uint rank = 256 * (threadgroup_position_in_grid.y * size[2] + threadgroup_position_in_grid.x) + {THREAD};
  reads[rank] = writes[rank] = 0;
  transposed(From{{x, reads + rank}}, To{{y, writes + rank}}, size[0], size[1], {TILE}, tile);
""",
    )

    def run(self, subject, x):
        rows, columns = x.shape
        grid = up(columns, 16), up(rows, 16)
        shapes = [(columns, rows), *[(grid[0] * grid[1],)] * 2]
        dtypes = [mx.float32, mx.uint32, mx.uint32]
        return launch(subject, self.KERNEL, [x], [rows, columns, grid[0] // 16], shapes, grid, (16, 16), dtypes)

    @pytest.mark.parametrize("rows, columns", [(1, 7), (16, 16), (31, 33), (48, 17)])
    def test_rows_become_columns(self, subject, draw, rows, columns):
        """y[c, r] = x[r, c]. Also where the last tiles are not full: what is a row of x is a column of y."""
        x = draw(rows, columns)
        y, _, _ = self.run(subject, x)
        assert_same(y, np.array(x).T, what="y")

    def test_neighbours_read_and_write_neighbours(self, subject, draw):
        """The 32 lanes of a simdgroup must touch 2 pieces of 64 bytes at a time, reading and writing: so the turn must be made in the tile."""
        _, reads, writes = self.run(subject, draw(32, 48))
        for what, where in (("read", reads), ("write", writes)):
            pieces = max(len(set(lanes // 16)) for lanes in np.array(where).reshape(-1, 32))
            assert_true(pieces <= 2, f"32 lanes {what} in {pieces} pieces of 64 bytes", expected="2", got=str(pieces))


class TestTask9Scan:
    KERNEL = puzzle("x", f"threadgroup float tile[128];\n  scan(x, y, size[0], {ROW}, {THREAD}, 128, tile);")

    @pytest.mark.parametrize("K", [1, 31, 33, 128])
    def test_running_sums(self, subject, draw, K):
        """y[r, k] = x[r, 0] + ... + x[r, k]. Nobody may write a number in the tile that somebody still has to read."""
        x = draw(8, K)
        y = launch(subject, self.KERNEL, [x], [K], [x.shape], 8 * 128, 128)
        bound = 8 * U * np.abs(to_float64(x)).cumsum(1)  # seven steps
        assert_close(y, to_float64(x).cumsum(1), bound, dtype=mx.float32, what="y")


class TestTask10Histogram:
    KERNEL = puzzle(
        "codes",
        f"threadgroup atomic_uint bins[16];\n  histogram(codes, counts, size[0], {THREAD}, 128, bins);",
        "counts",
    )

    @pytest.mark.parametrize("n", [1, 33, 128, 1000])
    def test_counts(self, subject, rng, n):
        """counts[v] is how often v = 0 ... 15 occurs. Threads meet at a counter: the bins start at zero, and additions are atomic."""
        codes = rng.integers(0, 16, n) // rng.integers(1, 3)
        inputs = [mx.array(codes.astype(np.uint32))]
        counts = launch(subject, self.KERNEL, inputs, [n], [(16,)], 128, 128, [mx.uint32])
        assert_same(counts, np.bincount(codes, minlength=16).astype(np.uint32), what="counts")


class TestTask11Product:
    KERNEL = puzzle(
        "a b",
        f"threadgroup float left[256], right[256];\n  product(a, b, c, size[0], size[1], size[2], {TILE}, left, right);",
        "c",
    )

    def run(self, subject, a, b):
        (M, K), N = a.shape, b.shape[1]
        return launch(subject, self.KERNEL, [a, b], [M, N, K], [(M, N)], (up(N, 16), up(M, 16)), (16, 16))

    @pytest.mark.parametrize("M, N, K", [(1, 8, 7), (16, 16, 16), (33, 17, 31), (7, 40, 50)])
    def test_a_times_b(self, subject, draw, M, N, K):
        """c = a b, [M, K] times [K, N]; tiles reach beyond the edges and must count zeros there."""
        a, b = draw(M, K), draw(K, N)
        bound = (K + 1) * U * (np.abs(to_float64(a)) @ np.abs(to_float64(b)))
        assert_close(self.run(subject, a, b), to_float64(a) @ to_float64(b), bound, dtype=mx.float32, what="c")

    def test_a_tile_is_read_once_for_16_rows(self, subject, draw):
        """A threadgroup reads each number of its tiles once, for 16 threads: a is read once for every 16 columns of c, not for each."""
        a, b = draw(32, 64), draw(64, 48)
        self.run(subject, a, b)
        assert_bytes(subject.traffic["a"].read, a.nbytes, 48 // 16, "a")
        assert_bytes(subject.traffic["b"].read, b.nbytes, 32 // 16, "b")


class TestTask12Softmax:
    KERNEL = puzzle(
        "x", f"threadgroup float partial[4];\n  softmax(x, y, size[0], {ROW}, {THREAD}, {LANE}, {SIMDGROUP}, partial);"
    )

    def check(self, subject, x):
        K = x.shape[1]
        y = launch(subject, self.KERNEL, [x], [K], [x.shape], x.shape[0] * 128, 128)
        exponents = to_float64(x) - to_float64(x).max(1, keepdims=True)
        want = np.exp(exponents) / np.exp(exponents).sum(1, keepdims=True)
        # Rounding an exponent e costs |e| U, of the sum's terms as well; then exp, sum, division.
        bound = (2 * np.abs(exponents).max() + K / 128 + 20) * U * want + 1e-37
        assert_close(y, want, bound, dtype=mx.float32, what="y")

    @pytest.mark.parametrize("K", [1, 7, 33, 128, 300])
    def test_a_row_is_a_distribution(self, subject, draw, K):
        """y[r] = exp(x[r] - max) / sum, by four simdgroups that share `partial` twice: for the maximum, then for the sum."""
        self.check(subject, draw(8, K))

    @pytest.mark.parametrize("offset", [-300.0, 300.0])
    def test_whatever_is_added_to_a_row(self, subject, draw, offset):
        """exp(300) is infinite and exp(-300) zero in float32: the row's own maximum comes off first, also where all are negative."""
        self.check(subject, draw(8, 33) + offset)

    def test_three_readings_at_most(self, subject, draw):
        """One for the maximum, one for the sum, one for the result."""
        x = draw(8, 256)
        self.check(subject, x)
        assert_bytes(subject.traffic["x"].read, x.nbytes, 3, "x")
