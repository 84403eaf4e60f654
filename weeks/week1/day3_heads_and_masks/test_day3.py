"""Day 1.3: heads against a float64 loop over heads, masks against the definition, one cell at a time. u = 2^-24 is one float32 rounding."""

import mlx.core as mx
import numpy as np
import pytest

from tinymlx.learn.grading import assert_close, assert_same, assert_true, roundoff, to_float64, unpack

U = roundoff(mx.float32)
DTYPES = pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=["float32", "float16", "bfloat16"])
WINDOWS = pytest.mark.parametrize("window", [None, 1, 2, 7, 100])


def attention64(q, k, v, mask, scale):
    """One head: q [L, D], k and v [T, D], mask [L, T]. Returns y, the log-sum-exp, and how far float32 may be from either."""
    scores = np.where(mask, scale * (q @ k.T), -np.inf)
    highest = scores.max(-1, keepdims=True)
    exps = np.exp(scores - highest)
    total = exps.sum(-1, keepdims=True)
    weights, lse = exps / total, (highest + np.log(total))[:, 0]
    # A score is a sum of D products. Its error counts twice, in exp and in the sum of T weights; then T + 40 roundings.
    score_error = (q.shape[-1] + 4) * U * abs(scale) * (np.abs(q) @ np.abs(k).T).max(-1, keepdims=True)
    relative = 2 * score_error + (k.shape[0] + 40) * U
    return weights @ v, lse, relative * (weights @ np.abs(v)), relative[:, 0] + 4 * U * np.abs(lse)


def check_heads(subject, q, k, v, mask=None, scale=0.25):
    """Against one head after the other, head h reading key head h // (H / G)."""
    mask_array = None if mask is None else mx.array(mask)
    returned = subject.grouped_query_attention(q, k, v, scale=scale, mask=mask_array)
    got, lse = unpack(returned, 2, "y and log-sum-exp")
    (B, H, L, _), (_, G, T, _) = q.shape, k.shape
    seen = np.broadcast_to(True if mask is None else mask, (B, 1, L, T))
    q64, k64, v64 = to_float64(q), to_float64(k), to_float64(v)
    heads = [
        attention64(q64[b, h], k64[b, h // (H // G)], v64[b, h // (H // G)], seen[b, 0], scale)
        for b in range(B)
        for h in range(H)
    ]
    want, want_lse, bound, lse_bound = (np.stack(parts).reshape(B, H, *parts[0].shape) for parts in zip(*heads))
    # y is rounded once into q's dtype, whose smallest numbers are coarse in float16: half of 2^-24.
    bound = bound + roundoff(q.dtype) * np.abs(want) + 3e-8 * (q.dtype == mx.float16)
    assert_close(got, want, bound, dtype=q.dtype, what="y")
    assert_close(lse, want_lse, lse_bound, dtype=mx.float32, what="log-sum-exp")


class TestTask1GroupedQueryAttention:
    @DTYPES
    @pytest.mark.parametrize("H, G", [(1, 1), (3, 3), (7, 1), (6, 2), (9, 3), (16, 8)])
    def test_against_float64(self, subject, draw, dtype, H, G):
        """Head h reads key head h // (H / G): of 6 heads over 2, the first three read key head 0. Both results keep q's order of heads."""
        L, T, D = 7, 33, 8
        check_heads(subject, draw(2, H, L, D, dtype=dtype), *(draw(2, G, T, D, dtype=dtype) for _ in "kv"))

    @pytest.mark.parametrize("B, L, T, D", [(1, 1, 1, 1), (3, 1, 31, 16), (1, 8, 8, 7)])
    def test_sizes(self, subject, draw, B, L, T, D):
        """One query or many, one key or many: L and T have nothing to do with one another."""
        check_heads(subject, draw(B, 6, L, D), draw(B, 2, T, D), draw(B, 2, T, D), scale=0.7)

    def test_neighbours_share(self, subject, draw):
        """Neighbouring query heads share: value head g holds g + 1 everywhere, so y of 6 heads must be 1 1 2 2 3 3, not 1 2 3 1 2 3."""
        v = mx.broadcast_to(mx.arange(1.0, 4.0)[None, :, None, None], (1, 3, 5, 8))
        returned = subject.grouped_query_attention(draw(1, 6, 1, 8), draw(1, 3, 5, 8), v, scale=0.3)
        got, _ = unpack(returned, 2, "y and log-sum-exp")
        want = np.broadcast_to(np.array([1.0, 1, 2, 2, 3, 3])[None, :, None, None], (1, 6, 1, 8))
        assert_close(got, want, 3 * (5 + 40) * U, what="y")  # weights that sum to 1, times 3 at most

    @pytest.mark.parametrize("rows", [1, 2], ids=["one_mask", "a_mask_a_row"])
    def test_mask(self, subject, draw, rng, rows):
        """mask [B or 1, 1, L, T] is of a row, for all its heads. With as many key heads as rows, one on the wrong axis still broadcasts."""
        mask = rng.random((rows, 1, 5, 9)) < 0.5
        mask[..., 0] = True
        mask[..., 1] = False
        mask[-1, ..., 2] = ~mask[0, ..., 2]  # of two rows, they differ
        v = mx.where(mx.arange(9)[:, None] == 1, 1e6, draw(2, 2, 9, 8))  # nobody may see it
        check_heads(subject, draw(2, 6, 5, 8), draw(2, 2, 9, 8), v, mask)

    def test_keys_and_values_are_not_repeated(self, subject, draw):
        """16 heads read 2 key heads where they lie: the memory taken meanwhile is less than 4 times k, and repeating k and v takes 16 times k."""
        q, k, v = draw(1, 16, 1, 64), draw(1, 2, 4096, 64), draw(1, 2, 4096, 64)
        mx.eval(q, k, v)
        mx.synchronize()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(subject.grouped_query_attention(q, k, v, scale=0.1))
        mx.synchronize()
        copies = (mx.get_peak_memory() - before) / k.nbytes
        # Scores and weights are an eighth of k each, and k and v may be copied once each.
        assert_true(
            copies < 4, "memory taken meanwhile", expected="less than 4 times k's bytes", got=f"{copies:.1f} times"
        )


def check_mask(got, want, what="mask"):
    assert_same(got, want, what=what)
    dtype = getattr(got, "dtype", type(got).__name__)
    assert_true(dtype == mx.bool_, f"{what} has another dtype", expected=str(mx.bool_), got=str(dtype))


def visible(query, key, window):
    """The definition, for one query and one key position."""
    return key <= query and (window is None or key > query - window)


def causal(queries, keys, window):
    cells = [[[visible(q, k, window) for k in row_keys] for q in row] for row, row_keys in zip(queries, keys)]
    return np.array(cells, bool)[:, None]


class TestTask2CausalMask:
    def check(self, subject, queries, keys, window=None):
        queries, keys = np.asarray(queries, np.int32), np.asarray(keys, np.int32)
        want = causal(queries.tolist(), keys.tolist(), window)
        check_mask(subject.causal_mask(mx.array(queries), mx.array(keys), window), want)

    @WINDOWS
    @pytest.mark.parametrize("L, T", [(1, 1), (7, 7), (8, 33), (31, 9)])
    def test_against_the_definition(self, subject, rng, L, T, window):
        """True where key position <= query position and, with a window, key position > query position - window. Positions in any order."""
        self.check(subject, rng.integers(0, 40, (3, L)), rng.integers(0, 40, (3, T)), window)

    def test_itself_and_before(self, subject):
        """Tokens 0 to 6 over themselves: the lower triangle and its diagonal. A token sees itself."""
        self.check(subject, [range(7)], [range(7)])

    def test_window_counts_itself(self, subject):
        """A window of 3 is three positions: itself and two before. A window of 1 is itself alone."""
        self.check(subject, [range(8)], [range(8)], 3)
        self.check(subject, [range(8)], [range(8)], 1)

    def test_window_hides_the_future_too(self, subject):
        """A window reaches back, not ahead: position 3 with a window of 5 does not see position 4."""
        self.check(subject, [[3]], [range(9)], 5)

    def test_positions_not_indices(self, subject):
        """A new token at position 32 over keys 0 to 32 sees them all, though it is row 0 of the mask."""
        self.check(subject, [[32]], [range(33)])
        self.check(subject, [range(20, 27)], [range(27)], 8)

    def test_far_into_a_text(self, subject):
        """Positions go far beyond what 8 or 16 bits hold: neighbours at 100,000 are still neighbours."""
        self.check(subject, [[100_000, 100_001]], [[99_999, 100_000, 100_001, 100_002]])
        self.check(subject, [[100_000, 100_001]], [[99_998, 99_999, 100_000, 100_001]], 2)

    def test_each_row_its_own_positions(self, subject):
        """Row b of the batch has its own positions: one at the start of its text, another far into it."""
        self.check(subject, [[0, 1], [9, 10], [4, 5]], [range(11), range(11), range(3, 14)])


def with_cache(lengths, slots, L, window):
    """The definition: slot j holds position j if it is filled; new token i stands at lengths[b] + i."""
    want = np.zeros((len(lengths), 1, L, slots + L), bool)
    for b, cached in enumerate(lengths):
        for i in range(L):
            for j in range(cached):
                want[b, 0, i, j] = visible(cached + i, j, window)
            for j in range(L):
                want[b, 0, i, slots + j] = visible(cached + i, cached + j, window)
    return want


class TestTask3AttentionMask:
    def check(self, subject, lengths, slots, L, window=None):
        lengths = [int(n) for n in lengths]
        got = subject.attention_mask(mx.array(lengths, mx.int32), slots, L, window)
        check_mask(got, with_cache(lengths, slots, L, window))

    @WINDOWS
    @pytest.mark.parametrize("slots, L", [(1, 1), (16, 1), (16, 7), (9, 31), (33, 8)])
    def test_against_the_definition(self, subject, rng, slots, L, window):
        """Filled slots and new tokens, each at its position, seen causally. Rows are empty, full, and in between."""
        self.check(subject, [0, slots, *rng.integers(0, slots + 1, 2)], slots, L, window)

    def test_nothing_cached(self, subject):
        """No slots at all: the causal mask of the new tokens among themselves, [B, 1, L, L]."""
        self.check(subject, [0, 0], 0, 7)
        self.check(subject, [0], 0, 8, 3)

    def test_unfilled_slots(self, subject):
        """A slot from lengths[b] on holds what an earlier request left there: nobody sees it, whatever its number."""
        self.check(subject, [3], 8, 1)
        self.check(subject, [0, 5], 8, 7)

    def test_new_tokens_see_one_another(self, subject):
        """New tokens stand behind all the slots, filled or not, in columns slots, slots + 1, ...: each sees itself and those before."""
        self.check(subject, [2], 16, 7)

    def test_window_counts_positions(self, subject):
        """With 3 tokens in 16 slots a new token's position is 3, not 16: a window of 3 still reaches cached tokens 1 and 2."""
        self.check(subject, [3], 16, 1, 3)
        self.check(subject, [3, 9], 16, 7, 5)

    def test_ragged_rows(self, subject):
        """Each row its own length: 0, 1, 8 and 31 cached tokens in one mask."""
        self.check(subject, [0, 1, 8, 31], 33, 8)
