"""Day 1.2 against decimals, complex numbers and a loop. U = 2^-24 is what one float32 rounding costs, V = 2^-53 one of float64."""

import decimal
import math

import mlx.core as mx
import numpy as np
import pytest

from tinymlx.learn.grading import assert_close, assert_same, assert_true, roundoff, to_float64

U, V = roundoff(mx.float32), 2.0**-53
DTYPES = pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=["float32", "float16", "bfloat16"])


def assert_close64(got, want: np.ndarray, relative: float, what: str) -> None:
    """Demands a NumPy array of float64 that is right within `relative`."""
    kind = f"{got.dtype} of shape {list(got.shape)}" if isinstance(got, np.ndarray | mx.array) else type(got).__name__
    is_array = isinstance(got, np.ndarray)
    assert_true(is_array, f"{what} are no NumPy array", expected=f"np.ndarray of shape {list(want.shape)}", got=kind)
    assert_true(got.shape == want.shape, f"{what} have another shape", expected=f"shape {list(want.shape)}", got=kind)
    assert_true(got.dtype == np.float64, f"{what} have another dtype", expected="float64", got=kind)
    off = ~(np.abs(got - want) <= relative * np.abs(want))
    i = int(off.argmax())
    message = f"{what}: {int(off.sum())} of {want.size} differ by more than {relative:.2g} of their size"
    assert_true(not off.any(), message, expected=f"[{i}] is {want[i]:.16g}", got=f"[{i}] is {got[i]:.16g}")


def frequencies64(head_dim: int, theta: float) -> np.ndarray:
    """theta^(-2i / D) in decimals of 40 digits."""
    with decimal.localcontext(prec=40):
        base = decimal.Decimal(theta)
        return np.array([float(base ** (decimal.Decimal(-2 * i) / head_dim)) for i in range(head_dim // 2)])


class TestTask1Frequencies:
    @pytest.mark.parametrize("head_dim", [2, 14, 62, 128])
    def test_against_decimals(self, subject, rng, head_dim):
        """theta^(-2i/D) for i = 0 ... D/2 - 1: the first is 1, the last is theta^(-(D-2)/D) and does not reach 1/theta."""
        theta = float(rng.uniform(1e3, 1e7))
        # float32 would be off by 1e-8; test_double_precision asks for more.
        got = subject.rope_frequencies(head_dim, theta)
        assert_close64(got, frequencies64(head_dim, theta), 1e-6, "frequencies")

    def test_one_a_pair(self, subject):
        """A head of D numbers has D/2 pairs. Some libraries write each frequency twice, once for either half; `rope` takes D/2."""
        assert_same(list(np.shape(subject.rope_frequencies(66, 10000.0))), [33], what="shape")

    def test_double_precision(self, subject, rng):
        """float64 from the start: a float32 power is off by 1e-8 to 1e-7, and position 100,000 makes 0.01 radians of that."""
        theta = float(rng.uniform(1e5, 1e7))
        # The exponent's rounding is multiplied by ln(theta) < 17; four of them, and the power's own.
        got = subject.rope_frequencies(128, theta)
        assert_close64(got, frequencies64(128, theta), (4 * math.log(theta) + 8) * V, "frequencies")


def periods_of(head_dim: int, theta: float = 1e6) -> mx.array:
    return mx.array(theta ** (np.arange(0, head_dim, 2) / head_dim), dtype=mx.float32)


def turned64(x, positions, periods, scale=1.0):
    """Each pair as a complex number, turned; and how far float32 may be off, before the result is rounded to x's dtype."""
    x, angles = to_float64(x), np.array(positions)[:, None, :, None] / to_float64(periods)
    first, second = np.split(x, 2, axis=-1)
    turned = (first + 1j * second) * np.exp(1j * angles) * scale
    # An angle has up to 3 roundings, which sin and cos hand on as they are; sin and cos 4 of their own; products and sum 4.
    error = abs(scale) * (np.abs(first) + np.abs(second)) * (3 * np.abs(angles) + 8) * U
    return np.concatenate([turned.real, turned.imag], -1), np.concatenate([error, error], -1)


def check_rope(subject, x, positions, periods, scale=None):
    got = subject.rope(x, mx.array(positions), periods, *([] if scale is None else [scale]))
    want, error = turned64(x, positions, periods, 1.0 if scale is None else scale)
    # The last rounding is into x's dtype; 6e-8 is the distance of float16's smallest numbers.
    bound = error + roundoff(x.dtype) * (np.abs(want) + error) + 6e-8 * (x.dtype == mx.float16)
    assert_close(got, want, bound, dtype=x.dtype, what="turned heads")


class TestTask2Rope:
    @DTYPES
    @pytest.mark.parametrize("B, heads, L, D", [(1, 1, 1, 2), (2, 3, 7, 14), (1, 5, 33, 128)])
    def test_against_float64(self, subject, draw, rng, dtype, B, heads, L, D):
        """(a, b) becomes (a cos - b sin, b cos + a sin), in float32 whatever x is; only the result is rounded to x's dtype."""
        positions = rng.integers(1, 1000, (B, L)).astype(np.int32)
        check_rope(subject, draw(B, heads, L, D, dtype=dtype), positions, periods_of(D))

    def test_pairs_are_halves(self, subject, rng):
        """Component i turns with component i + D/2, not with its neighbour i + 1. Token j is 1 at component j and 0 elsewhere."""
        positions = np.full((1, 14), rng.integers(1, 100), np.int32)
        check_rope(subject, mx.eye(14)[None, None], positions, periods_of(14))

    def test_position_0_changes_nothing(self, subject, draw):
        """An angle of 0 leaves every number exactly as it is."""
        x = draw(2, 2, 3, 8, dtype=mx.bfloat16)
        got = subject.rope(x, mx.zeros((2, 3), mx.int32), periods_of(8))
        assert_close(got, to_float64(x), 0.0, dtype=mx.bfloat16, what="heads at position 0")

    def test_ragged_positions(self, subject, draw, rng):
        """Each row of a batch has its own positions, the same for all its heads; they need not start at 0 nor follow one another."""
        # As many rows as heads: were the axis of the heads missing, shapes would fit all the same.
        check_rope(subject, draw(3, 3, 5, 8), rng.integers(1, 500, (3, 5)).astype(np.int32), periods_of(8))

    @DTYPES
    def test_large_positions(self, subject, draw, rng, dtype):
        """Angles are float32 though x is not: float16 ends at 65504, and bfloat16 does not tell 131071 from 131072, nor 257 from 256."""
        positions = np.concatenate([[257, 32769, 131071], rng.integers(1000, 131072, 4)]).astype(np.int32)[None]
        check_rope(subject, draw(1, 2, 7, 128, dtype=dtype), positions, periods_of(128))

    def test_scale(self, subject, draw, rng):
        """`scale` multiplies the result, once. It does not multiply positions, as an argument of that name of mx.fast.rope does."""
        check_rope(subject, draw(1, 2, 7, 16), rng.integers(1, 100, (1, 7)).astype(np.int32), periods_of(16), 1.1386)

    def test_only_the_distance_counts(self, subject, draw, rng):
        """A query and a key have the same score wherever both are moved to: the product of two rotations is one by the difference."""
        q, k, periods = draw(1, 1, 31, 62), draw(1, 1, 31, 62), periods_of(62)
        at = rng.integers(0, 300, (2, 1, 31)).astype(np.int32)
        scores, bounds = [], []
        for moved in (0, int(rng.integers(300, 3000))):
            turned = [subject.rope(x, mx.array(p + moved), periods) for x, p in ((q, at[0]), (k, at[1]))]
            for y in turned:
                assert_same(list(y.shape), [1, 1, 31, 62], what="shape of turned heads")
            scores.append((to_float64(turned[0]) * to_float64(turned[1])).sum(-1))
            (_, q_error), (_, k_error) = turned64(q, at[0] + moved, periods), turned64(k, at[1] + moved, periods)
            q_size, k_size = (np.linalg.norm(to_float64(x), axis=-1, keepdims=True) for x in (q, k))
            bounds.append(((q_error + U * q_size) * k_size + (k_error + U * k_size) * q_size).sum(-1))
        off = np.abs(scores[1] - scores[0]) > bounds[0] + bounds[1]
        i = int(off.argmax())
        assert_true(
            not off.any(),
            f"{int(off.sum())} of 31 scores change when query and key move {moved} tokens on",
            expected=f"{scores[0].flat[i]:.6g}",
            got=f"{scores[1].flat[i]:.6g}",
        )

    def test_stays_in_mlx(self, subject, draw):
        """On a GPU the engine traces `rope` once and compiles it: a value read on the way (NumPy, .item(), .tolist()) ends that."""
        try:
            # Traced but never run: a CPU would need a C++ compiler for that.
            y = mx.compile(subject.rope)(draw(1, 2, 3, 8), mx.array([[4, 5, 6]]), periods_of(8))
        except ValueError as error:
            y = str(error)
        assert_true(
            isinstance(y, mx.array), "rope reads values while it is traced", expected="MLX operations", got=str(y)
        )


def yarn64(plain, head_dim, theta, scaling):
    """A loop over pairs. The index that turns so many times is found by bisection of theta^(-2i/D) * original / 2 pi."""
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]

    def index_that_turns(times):
        below, above = -1e4, 1e4
        for _ in range(100):
            middle = (below + above) / 2
            turns = math.log(original / (2 * math.pi)) - 2 * middle / head_dim * math.log(theta)
            below, above = (middle, above) if turns > math.log(times) else (below, middle)
        return (below + above) / 2

    low, high = index_that_turns(scaling.get("beta_fast") or 32), index_that_turns(scaling.get("beta_slow") or 1)
    if scaling.get("truncate") is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    found = []
    for i, frequency in enumerate(plain):
        slowed = float(i > low) if low == high else min(max((i - low) / (high - low), 0.0), 1.0)
        found.append((1 - slowed) * frequency + slowed * frequency / factor)
    return np.array(found)


def check_yarn(subject, head_dim, theta, scaling):
    plain = frequencies64(head_dim, theta)
    got = subject.yarn_frequencies(plain.copy(), head_dim, theta, scaling)
    # Some thousand roundings, for the bisection's sake too. A ramp that is not the right one is off by 1e-3 and more.
    assert_close64(got, yarn64(plain, head_dim, theta, scaling), 1e-12, "frequencies")


class TestTask3Yarn:
    @pytest.mark.parametrize("head_dim", [14, 62, 128])
    def test_against_a_loop(self, subject, rng, head_dim):
        """Frequencies are blended, not periods; the share of slowing is linear in the pair's index, not in its turns."""
        original, theta = int(rng.integers(2000, 65536)), float(rng.uniform(1e4, 1e7))
        scaling = {"factor": float(rng.uniform(1.5, 8)), "original_max_position_embeddings": original}
        check_yarn(subject, head_dim, theta, scaling)

    def test_qwen3(self, subject):
        """Qwen3 from 32,768 to 131,072 tokens: pairs 0 to 23 are kept, pairs 40 to 63 turn four times slower."""
        scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
        plain = frequencies64(128, 1e6)
        got = subject.yarn_frequencies(plain.copy(), 128, 1e6, scaling)
        assert_same(list(np.shape(got)), [64], what="shape")
        assert_close64(got[:24], plain[:24], 8 * V, "frequencies of pairs 0 to 23")
        assert_close64(got[40:], plain[40:] / 4, 8 * V, "frequencies of pairs 40 to 63")

    def test_betas(self, subject, rng):
        """The config's beta_fast and beta_slow count, where it has them; absent or None they are 32 and 1."""
        scaling = {"factor": 4.0, "original_max_position_embeddings": 8192}
        check_yarn(subject, 62, 1e5, scaling | {"beta_fast": float(rng.uniform(4, 20)), "beta_slow": None})
        check_yarn(subject, 62, 1e5, scaling | {"beta_slow": float(rng.uniform(2, 8))})

    def test_not_truncated(self, subject, rng):
        """With "truncate": False the ramp runs between the two indices as they are, without rounding them."""
        original = int(rng.integers(2000, 65536))
        scaling = {"factor": 3.0, "original_max_position_embeddings": original, "truncate": False}
        check_yarn(subject, 62, 5e5, scaling)

    def test_short_original_context(self, subject, rng):
        """In 64 tokens no pair turns 32 times: the lower index would be negative and the ramp start before the first pair. It is 0."""
        scaling = {"factor": float(rng.uniform(2, 8)), "original_max_position_embeddings": 64}
        check_yarn(subject, 62, 10000.0, scaling)
        check_yarn(subject, 14, 10000.0, scaling | {"original_max_position_embeddings": 6})  # both are 0

    def test_no_ramp(self, subject):
        """Where the two indices are the same there is no ramp but a step, and nothing is divided by 0."""
        scaling = {"factor": 2.0, "original_max_position_embeddings": 4096, "truncate": False}
        check_yarn(subject, 62, 10000.0, scaling | {"beta_fast": 4.0, "beta_slow": 4.0})

    def test_input_stays(self, subject, rng):
        """`plain` is not changed in place: whoever handed it in may need it."""
        scaling = {"factor": float(rng.uniform(2, 8)), "original_max_position_embeddings": 32768}
        plain = frequencies64(128, 1e6)
        handed_in = plain.copy()
        subject.yarn_frequencies(handed_in, 128, 1e6, scaling)
        same = handed_in.shape == plain.shape and bool((handed_in == plain).all())
        assert_true(same, "the frequencies that were handed in have been changed", expected="a new array")
