"""Day 1.1 against float64 NumPy. u = 2^-24 is what one float32 rounding costs; each bound counts roundings."""

import mlx.core as mx
import numpy as np
import pytest

from tinymlx.learn.grading import assert_close, assert_same, assert_true, roundoff, to_float64, unpack

U = roundoff(mx.float32)
SIZES = pytest.mark.parametrize("T", [1, 7, 8, 31, 33])
DTYPES = pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=["float32", "float16", "bfloat16"])


def softmax64(scores):
    """Weights and log-sum-exp of finite rows."""
    highest = scores.max(-1, keepdims=True)
    exps = np.exp(scores - highest)
    total = exps.sum(-1, keepdims=True)
    return exps / total, (highest + np.log(total))[..., 0]


def check_softmax(subject, scores):
    got, lse = unpack(subject.softmax(scores), 2, "weights and log-sum-exp")
    values = to_float64(scores)
    want, want_lse = softmax64(values)
    # exp turns the absolute error of its argument into a relative one; a sum of T terms adds T roundings.
    spread = np.where(np.isfinite(values), values.max(-1, keepdims=True) - values, 0).max(-1, keepdims=True)
    roundings = 2 * spread + scores.shape[-1] + 16
    assert_close(got, want, want * roundings * U + 1e-37, dtype=mx.float32, what="weights")
    # One rounding is of the result itself; without the maximum subtracted it would be of numbers as large as the scores.
    assert_close(lse, want_lse, (roundings[..., 0] + 4 * np.abs(want_lse)) * U, dtype=mx.float32, what="log-sum-exp")


class TestTask1Softmax:
    @SIZES
    def test_against_float64(self, subject, draw, T):
        """exp of each score over the sum along the last axis, and the logarithm of that sum."""
        check_softmax(subject, 5 * draw(2, 3, T))

    def test_large_scores(self, subject, draw):
        """exp(89) is more than float32 holds: subtract each row's maximum first, and add it to the logarithm again."""
        check_softmax(subject, 1000 + 3 * draw(4, 9))
        check_softmax(subject, -1000 + 3 * draw(4, 9))

    def test_rows_far_apart(self, subject, draw):
        """The maximum of the row, not of the array: a row 500 below another one would be all zeros."""
        check_softmax(subject, draw(2, 7) + mx.array([[0.0], [500.0]]))

    def test_masked_scores_weigh_nothing(self, subject, draw):
        """A score of -inf has weight 0, exactly; the others share as if it were not there."""
        scores = mx.where(mx.arange(9) < 6, draw(3, 9), -mx.inf)
        check_softmax(subject, scores)

    def test_row_of_nothing(self, subject, draw):
        """A row of -inf has no maximum to subtract, and -inf - -inf is NaN: its weights are 0 and its log-sum-exp is -inf."""
        scores = mx.concatenate([draw(1, 5), mx.full((1, 5), -mx.inf)])
        got, lse = unpack(subject.softmax(scores), 2, "weights and log-sum-exp")
        want, want_lse = softmax64(to_float64(scores[:1]))
        assert_close(got, np.concatenate([want, np.zeros((1, 5))]), 40 * U, what="weights")
        assert_close(lse, np.append(want_lse, -np.inf), 40 * U, what="log-sum-exp")


def scores64(q, k, scale):
    """Scores, and how far a float32 sum over D products may be off."""
    q, k = to_float64(q), to_float64(k).swapaxes(-1, -2)
    return scale * (q @ k), (q.shape[-1] + 4) * U * abs(scale) * (np.abs(q) @ np.abs(k))


class TestTask2Scores:
    def test_small(self, subject):
        """Each query times each key, times the scale: 2 queries, 3 keys, numbers that the head can check."""
        q, k = mx.array([[1.0, 0.0], [2.0, 1.0]]), mx.array([[1.0, 1.0], [0.0, 3.0], [4.0, 0.0]])
        want = 0.5 * np.array([[1.0, 0.0, 4.0], [3.0, 3.0, 8.0]])
        assert_close(subject.attention_scores(q, k, scale=0.5), want, 4 * U, what="scores")

    @DTYPES
    @pytest.mark.parametrize("L, T, D", [(1, 1, 1), (7, 8, 33), (31, 7, 64)])
    def test_against_float64(self, subject, draw, dtype, L, T, D):
        """Any sizes, and sums in float32 whatever the dtype of q and k: the bound counts float32 roundings."""
        q, k = draw(2, 3, L, D, dtype=dtype), draw(2, 3, T, D, dtype=dtype)
        want, bound = scores64(q, k, 0.3)
        assert_close(subject.attention_scores(q, k, scale=0.3), want, bound, dtype=mx.float32, what="scores")

    def test_leading_axes_broadcast(self, subject, draw):
        """Four query heads against one key head: [2, 4, 5, 8] and [2, 1, 6, 8]. Only the last two axes of k are swapped."""
        q, k = draw(2, 4, 5, 8), draw(2, 1, 6, 8)
        want, bound = scores64(q, k, 1.0)
        assert_close(subject.attention_scores(q, k, scale=1.0), want, bound, what="scores")

    def test_mask(self, subject, draw, rng):
        """True may look. False is -inf, not merely a large negative number."""
        q, k = draw(1, 2, 7, 8), draw(1, 2, 9, 8)
        mask = rng.random((1, 1, 7, 9)) < 0.6
        want, bound = scores64(q, k, 0.5)
        want = np.where(mask, want, -np.inf)
        assert_close(subject.attention_scores(q, k, scale=0.5, mask=mx.array(mask)), want, bound, what="scores")


def attend(subject, *args, **options):
    return unpack(subject.scaled_dot_product_attention(*args, **options), 2, "y and log-sum-exp")


class TestTask3Attention:
    def check(self, subject, q, k, v, mask=None, scale=0.25):
        got, lse = attend(subject, q, k, v, scale=scale, mask=None if mask is None else mx.array(mask))
        scores, bound = scores64(q, k, scale)
        if mask is not None:
            scores = np.where(mask, scores, -np.inf)
        weights, want_lse = softmax64(scores)
        values = to_float64(v)
        # Errors of the scores count twice (in exp and in the sum); then T + 40 roundings, and one into q's dtype.
        relative = 2 * bound.max(-1, keepdims=True) + (k.shape[-2] + 40) * U
        want = weights @ values
        tolerance = relative * (weights @ np.abs(values)) + roundoff(q.dtype) * np.abs(want)
        assert_close(got, want, tolerance + 6e-8 * (q.dtype == mx.float16), dtype=q.dtype, what="y")
        assert_close(lse, want_lse, relative[..., 0] + 4 * U * np.abs(want_lse), dtype=mx.float32, what="log-sum-exp")

    @DTYPES
    @pytest.mark.parametrize("L, T, D", [(1, 1, 8), (1, 33, 16), (7, 31, 64), (33, 8, 7)])
    def test_against_float64(self, subject, draw, dtype, L, T, D):
        """Weights times values. y has q's dtype; the log-sum-exp stays float32."""
        self.check(subject, draw(2, 3, L, D, dtype=dtype), draw(2, 3, T, D, dtype=dtype), draw(2, 3, T, D, dtype=dtype))

    @pytest.mark.parametrize("scale", [1.0, 0.01])
    def test_the_scale_is_given(self, subject, draw, scale):
        """`scale` multiplies once, and it need not be 1/sqrt(D)."""
        self.check(subject, draw(5, 16), draw(9, 16), draw(9, 16), scale=scale)

    def test_leading_axes_broadcast(self, subject, draw):
        """Four query heads against one head of keys and values: [2, 4, 5, 8] and [2, 1, 6, 8]."""
        self.check(subject, draw(2, 4, 5, 8), draw(2, 1, 6, 8), draw(2, 1, 6, 8))

    def test_mask(self, subject, draw, rng):
        """A masked key's value does not come through, however large."""
        mask = rng.random((2, 1, 6, 9)) < 0.5
        mask[..., 0] = True
        v = mx.where(mx.arange(9)[:, None] == 5, 1e6, draw(2, 3, 9, 8))
        mask[..., 5] = False
        self.check(subject, draw(2, 3, 6, 8), draw(2, 3, 9, 8), v, mask)

    def test_query_that_sees_nothing(self, subject, draw):
        """Zeros and -inf, and no NaN; the other queries are as ever."""
        q, k, v = draw(1, 2, 8), draw(1, 5, 8), draw(1, 5, 8)
        mask = np.array([[True] * 5, [False] * 5])
        got, lse = attend(subject, q, k, v, scale=0.3, mask=mx.array(mask))
        alone, _ = attend(subject, q[:, :1], k, v, scale=0.3)
        assert_close(got, np.concatenate([to_float64(alone), np.zeros((1, 1, 8))], 1), 8 * U, what="y")
        empty = lse[0, 1].item()
        assert_true(empty == -np.inf, "the log-sum-exp of a query that sees nothing", expected="-inf", got=str(empty))

    def test_order_of_keys_does_not_matter(self, subject, draw, rng):
        """Attention is a set operation: keys and values shuffled together give the same y."""
        q, k, v = draw(3, 8), draw(11, 8), draw(11, 8)
        order = mx.array(rng.permutation(11))
        first, _ = attend(subject, q, k, v, scale=1.0)
        second, _ = attend(subject, q, k[order], v[order], scale=1.0)
        bound = 80 * U * float(mx.abs(v).max()) * 8
        assert_close(second, to_float64(first), bound, what="y of shuffled keys")
        assert_same(list(second.shape), [3, 8], what="y's shape")
