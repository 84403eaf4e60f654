"""Day 1.4 against float64 NumPy. u is what one rounding costs in the dtype, U = 2^-24 in float32; each bound counts roundings."""

import mlx.core as mx
import numpy as np
import pytest

from tinymlx.learn.grading import assert_close, roundoff, to_float64

U = roundoff(mx.float32)
SIZES = pytest.mark.parametrize("K", [1, 7, 8, 31, 33])
DTYPES = pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=["float32", "float16", "bfloat16"])
HALVES = pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])


def rounded(values, dtype):
    """float64 values, rounded to the dtype. Through float32, which matters only for ties."""
    return to_float64(mx.array(values.astype(np.float32)).astype(dtype))


def smallest(dtype):
    """Two roundings of what is too small for the dtype's precision: float16 has steps of 2^-24 there, the others reach 1e-38."""
    return 2.0**-24 if dtype == mx.float16 else 1e-37


def normed64(x, eps):
    x = to_float64(x)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def float32_roundings(K):
    """Relative error of a float32 norm: half of what the sum of K squares, eps and the mean add up to, then root, inverse, product."""
    return (K / 2 + 16) * U


def check_norm(subject, x, weight, eps):
    want = normed64(x, eps) * to_float64(weight)
    # Two roundings to the dtype, of the scaled x and of its product with the weight; 2.1 for their second order.
    relative = 2.1 * roundoff(x.dtype) + float32_roundings(x.shape[-1])
    bound = relative * np.abs(want) + smallest(x.dtype) * (1 + np.abs(to_float64(weight)))
    assert_close(subject.rms_norm(x, weight, eps), want, bound, dtype=x.dtype, what="normed x")


class TestTask1RmsNorm:
    @DTYPES
    @SIZES
    def test_against_float64(self, subject, draw, dtype, K):
        """x over the root of the mean of its squares along the last axis, times weight; in x's dtype."""
        check_norm(subject, 5 * draw(3, K, dtype=dtype), draw(K, dtype=dtype), 1e-6)

    def test_the_mean_is_not_subtracted(self, subject, draw):
        """RMSNorm divides and nothing else: a vector of equal numbers becomes ones. Layer norm would make it zeros."""
        check_norm(subject, 10 + draw(4, 33), 1 + draw(33), 1e-6)
        check_norm(subject, mx.full((2, 8), 3.0), mx.ones(8), 1e-6)

    def test_each_vector_by_itself(self, subject, draw):
        """[B, L, heads, D]: every head of every token has its own root mean square, whatever the size of its neighbours."""
        scales = mx.array([0.01, 1.0, 1000.0])[:, None]
        check_norm(subject, draw(2, 5, 3, 16) * scales, 1 + 0.3 * draw(16), 1e-6)

    @pytest.mark.parametrize("eps", [1e-6, 1e-5])
    def test_eps_is_under_the_root(self, subject, draw, eps):
        """1 / sqrt(mean + eps). Outside the root, eps would be a thousand times smaller beside a small x; a row of zeros stays zeros."""
        x = mx.concatenate([eps**0.5 * draw(3, 31), mx.zeros((1, 31))])
        check_norm(subject, x, 1 + draw(31), eps)

    def test_squares_and_sums_in_float32(self, subject, draw):
        """In float16 the square of 256 is infinite; in bfloat16 256 + 1 is 256. Turn x into float32 before squaring it."""
        check_norm(subject, 300 + draw(3, 33, dtype=mx.float16), mx.ones(33, mx.float16), 1e-6)
        check_norm(subject, mx.ones((1, 1024), mx.bfloat16), mx.ones(1024, mx.bfloat16), 1e-6)

    @HALVES
    def test_rounds_before_the_weight(self, subject, draw, dtype):
        """The scaled x is rounded to its dtype, then multiplied: to the bit as Hugging Face does. Rounding once gives other bits."""
        x, weight = draw(5, 64, dtype=dtype), 1 + 0.3 * draw(64, dtype=dtype)
        exact, error = normed64(x, 1e-6), float32_roundings(64)
        want = rounded(rounded(exact, dtype) * to_float64(weight), dtype)
        # Where float32's own error may turn the first rounding either way, both ways are right.
        certain = rounded(exact * (1 + error), dtype) == rounded(exact * (1 - error), dtype)
        bound = np.where(certain, 0, 4 * roundoff(dtype) * np.abs(want) + smallest(dtype) * 4)
        assert_close(subject.rms_norm(x, weight, 1e-6), want, bound, dtype=dtype, what="normed x")


def silu64(x):
    """silu, and how far one may be off that was computed in x's dtype."""
    values = to_float64(x)
    e = np.exp(-np.abs(values))  # never overflows
    want = values * np.where(values >= 0, 1, e) / (1 + e)
    # exp, the sum with 1, the quotient and the product are rounded, exp by a little more; float32's exp loses with the size of x.
    bound = (8 * roundoff(x.dtype) + 2 * np.abs(values) * U) * np.abs(want) + smallest(x.dtype) * (1 + np.abs(values))
    if x.dtype == mx.float16:  # exp(11.1) is infinite there, so sigmoid(-11.1) may be 0: off by 11.1 exp(-11.1)
        bound = bound + np.where(values < -11, 2e-4, 0)
    return want, bound


def check_silu(subject, x):
    want, bound = silu64(x)
    assert_close(subject.silu(x), want, bound, dtype=x.dtype, what="silu(x)")


class TestTask2Silu:
    @DTYPES
    @SIZES
    def test_against_float64(self, subject, draw, dtype, K):
        """x / (1 + exp(-x)), element by element, in x's dtype: what is half precision stays half precision."""
        check_silu(subject, 3 * draw(3, K, dtype=dtype))

    @pytest.mark.parametrize("shape", [(), (1,), (2, 1, 3, 5)], ids=str)
    def test_any_shape(self, subject, draw, shape):
        """No axis means anything here: a single number and four axes are both fine."""
        check_silu(subject, draw(*shape))

    def test_below_zero(self, subject):
        """Not cut off at 0 like ReLU, and not GELU: at -1.278 it has its minimum of -0.278, and it rises again to the left."""
        check_silu(subject, mx.array([-0.01, -0.5, -1.278, -2.0, -5.0, -9.0]))

    @DTYPES
    def test_large_inputs(self, subject, draw, dtype):
        """exp(89) is infinite in float32, exp(12) in float16. A large x comes back as it is, a large -x gives 0, neither gives NaN."""
        sizes = mx.array([20.0, 100.0, 1000.0, 30000.0])
        x = sizes * (1 + 0.1 * mx.abs(mx.clip(draw(3, 4), -3, 3)))
        check_silu(subject, x.astype(dtype))
        check_silu(subject, (-x).astype(dtype))


def check_swiglu(subject, gate, up):
    opened, bound = silu64(gate)
    want, up64, u = opened * to_float64(up), to_float64(up), roundoff(gate.dtype)
    # silu's error, times up; then the product's own rounding.
    bound = bound * np.abs(up64) * (1 + u) + u * np.abs(want) + smallest(gate.dtype)
    assert_close(subject.swiglu(gate, up), want, bound, dtype=gate.dtype, what="silu(gate) * up")


class TestTask3Swiglu:
    @DTYPES
    @SIZES
    def test_against_float64(self, subject, draw, dtype, K):
        """silu of the first argument times the second, element by element, in their dtype."""
        check_swiglu(subject, 2 * draw(2, 3, K, dtype=dtype), 2 * draw(2, 3, K, dtype=dtype))

    def test_a_closed_gate(self, subject, draw):
        """A gate far below 0 lets nothing through, whatever `up` is; exchanged, `up` would be the gate."""
        check_swiglu(subject, -30 + draw(3, 7), 10 + draw(3, 7))

    def test_an_open_gate(self, subject, draw):
        """A gate far above 0 multiplies `up` by itself. `up` may be negative: it goes through no silu, and the product neither."""
        check_swiglu(subject, 20 + draw(3, 7), -10 + draw(3, 7))
        check_swiglu(subject, 20 + draw(3, 7), 10 + draw(3, 7))
