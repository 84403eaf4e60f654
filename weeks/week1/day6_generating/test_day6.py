"""Day 1.6. Places, chunks and order of events are exact; attention is held against float64 NumPy, u = 2^-24 a float32 rounding."""

from itertools import islice

import mlx.core as mx
import numpy as np
import pytest

from tinymlx.learn.grading import Wrong, assert_close, assert_same, assert_true, roundoff, to_float64, unpack

U = roundoff(mx.float32)
DTYPES = pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=["float32", "float16", "bfloat16"])


class TestTask1PageSlots:
    def check(self, subject, rng, start, count, page_size):
        # Page numbers from a shuffled pool, so that neither their order nor their distance says anything.
        table = [int(p) for p in rng.permutation(40)[: max(-(-(start + count) // page_size), 1)]]
        pages, slots = unpack(subject.page_slots(table, start, count, page_size), 2, "pages and slots")
        for what, got in (("pages", pages), ("slots", slots)):
            assert_true(isinstance(got, np.ndarray), f"{what} are no NumPy array", got=type(got).__name__)
            kind = got.dtype
            assert_true(np.issubdtype(kind, np.integer), f"{what} are no integers", expected="int64", got=str(kind))
        positions = range(start, start + count)
        want_pages = [table[position // page_size] for position in positions]
        assert_same(pages, np.array(want_pages, np.int64), what=f"pages of positions {start} to {start + count - 1}")
        want_slots = [position % page_size for position in positions]
        assert_same(slots, np.array(want_slots, np.int64), what=f"slots of positions {start} to {start + count - 1}")

    @pytest.mark.parametrize("count, page_size", [(1, 1), (7, 8), (8, 8), (31, 8), (33, 16), (5, 7)])
    def test_from_the_beginning(self, subject, rng, count, page_size):
        """Position p lies in the table's entry p // page_size. That entry is a page's number in the pool; its place in the table is not."""
        self.check(subject, rng, 0, count, page_size)

    @pytest.mark.parametrize(
        "start, count, page_size", [(1, 1, 8), (7, 8, 8), (8, 7, 8), (15, 33, 16), (31, 1, 7), (3, 2, 1)]
    )
    def test_in_the_middle(self, subject, rng, start, count, page_size):
        """A step rarely begins where a page does: positions count from the row's first token, not from the step's."""
        self.check(subject, rng, start, count, page_size)

    @pytest.mark.parametrize("table, start", [([5], 0), ([5], 7), ([], 0)])
    def test_nothing_to_write(self, subject, table, start):
        """A row without new tokens in this step: two empty arrays, and of integers, for one of floats would be no index."""
        for what, got in zip(("pages", "slots"), subject.page_slots(table, start, 0, 8)):
            assert_true(isinstance(got, np.ndarray), f"{what} are no NumPy array", got=type(got).__name__)
            assert_same(got, np.zeros(0, np.int64), what=what)
            dtype = np.asarray(got).dtype
            assert_true(np.issubdtype(dtype, np.integer), f"{what} are no integers", expected="int64", got=str(dtype))


def gathered64(pool, pages):
    """Row by row, head by head, slot by slot."""
    _, G, page, D = pool.shape
    B, M = pages.shape
    want = np.empty((B, G, M * page, D))
    for b in range(B):
        for g in range(G):
            for slot in range(M * page):
                want[b, g, slot] = pool[pages[b, slot // page], g, slot % page]
    return want


class TestTask2GatherPages:
    def check(self, subject, pool, pages):
        got = subject.gather_pages(pool, mx.array(pages), mx.arange(pool.shape[1]))
        assert_close(got, gathered64(to_float64(pool), pages), 0.0, dtype=pool.dtype, what="gathered pages")

    @DTYPES
    @pytest.mark.parametrize("B, G, M, page, D", [(1, 1, 1, 1, 1), (1, 3, 7, 8, 5), (3, 2, 1, 7, 8), (2, 8, 5, 4, 3)])
    def test_every_slot(self, subject, draw, rng, dtype, B, G, M, page, D):
        """Slot m * page + i of head g is pool[pages[b, m], g, i]: the heads stand before the pages in the result, and behind them in the pool."""
        self.check(subject, draw(17, G, page, D, dtype=dtype), rng.integers(0, 17, (B, M)).astype(np.int32))

    def test_pages_in_the_order_of_the_table(self, subject, draw):
        """A row's pages lie anywhere in the pool, and the order of its positions is the table's: 5, 2, 9 is not 2, 5, 9."""
        self.check(subject, draw(11, 2, 4, 3), np.array([[5, 2, 9], [8, 1, 0]], np.int32))

    def test_rows_share_and_repeat_pages(self, subject, draw):
        """Short rows are padded with a page that may belong to another row, and the same page may stand there more than once."""
        self.check(subject, draw(6, 3, 2, 5), np.array([[4, 1, 3], [2, 0, 0], [4, 0, 0]], np.int32))


def visible_slots(lengths, slots, L, window=None):
    """[B, 1, L, slots + L]: row b has lengths[b] tokens in its slots; new token i is at position lengths[b] + i."""
    mask = np.zeros((len(lengths), 1, L, slots + L), bool)
    for b, length in enumerate(lengths):
        for i in range(L):
            for j in range(slots + L):
                position = j if j < slots else length + j - slots
                held = j >= slots or j < length
                near = window is None or length + i - position < window
                mask[b, 0, i, j] = held and position <= length + i and near
    return mask


def attention64(q, k, v, mask, scale):
    """One query at a time over the slots it may see. Returns y, the log-sum-exp, and for each a bound on float32's error."""
    B, H, L, D = q.shape
    share = H // k.shape[1]
    y, lse = np.zeros((B, H, L, D)), np.zeros((B, H, L))
    y_bound, lse_bound = np.zeros((B, H, L, D)), np.zeros((B, H, L))
    for b, h, i in np.ndindex(B, H, L):
        seen = mask[b, 0, i]
        keys, values = k[b, h // share, seen], v[b, h // share, seen]
        scores = scale * (keys @ q[b, h, i])
        highest = scores.max()
        exps = np.exp(scores - highest)
        weights = exps / exps.sum()
        y[b, h, i], lse[b, h, i] = weights @ values, highest + np.log(exps.sum())
        # A sum over D products is off by at most D + 4 roundings of their magnitudes. That counts twice, in exp and in the sum;
        # sums over the slots and the rest take as many roundings as there are slots, and 40.
        scores_bound = (D + 4) * U * abs(scale) * (np.abs(keys) @ np.abs(q[b, h, i])).max()
        relative = 2 * scores_bound + (mask.shape[-1] + 40) * U
        y_bound[b, h, i] = relative * (weights @ np.abs(values))
        lse_bound[b, h, i] = relative + 4 * U * abs(lse[b, h, i])
    return y, lse, y_bound, lse_bound


class TestTask3PagedAttention:
    def check(self, subject, q, k_new, v_new, k_pages, v_pages, mask, scale=0.3, poison=None):
        """poison: put where no query of a row may look, in keys and values."""
        q64, k64, v64 = (
            to_float64(q),
            np.concatenate([to_float64(k_pages), to_float64(k_new)], 2),
            np.concatenate([to_float64(v_pages), to_float64(v_new)], 2),
        )
        if poison is not None:
            slots = k_pages.shape[2]
            unseen = mx.array(~mask.any(axis=2)[:, :, :slots, None])  # [B, 1, slots, 1]
            k_pages, v_pages = (mx.where(unseen, poison, pages).astype(pages.dtype) for pages in (k_pages, v_pages))
        returned = subject.paged_attention(q, k_new, v_new, k_pages, v_pages, mx.array(mask), scale=scale)
        y, lse = unpack(returned, 2, "y and log-sum-exp")
        want, want_lse, bound, lse_bound = attention64(q64, k64, v64, mask, scale)
        bound = bound + roundoff(q.dtype) * np.abs(want) + 6e-8 * (q.dtype == mx.float16)  # float16's smallest step
        assert_close(y, want, bound, dtype=q.dtype, what="y")
        assert_close(lse, want_lse, lse_bound, dtype=mx.float32, what="log-sum-exp")

    def drawn(self, draw, B, H, G, L, slots, D, dtype=mx.float32):
        """q, k_new, v_new, k_pages, v_pages."""
        new, pages = (B, G, L, D), (B, G, slots, D)
        return [draw(*shape, dtype=dtype) for shape in ((B, H, L, D), new, new, pages, pages)]

    @DTYPES
    @pytest.mark.parametrize(
        "lengths, H, G, L, slots, D",
        [([1], 1, 1, 1, 1, 1), ([7], 4, 2, 1, 8, 16), ([3, 8], 6, 3, 7, 8, 5), ([30], 2, 1, 3, 32, 33)],
    )
    def test_against_float64(self, subject, draw, dtype, lengths, H, G, L, slots, D):
        """One attention over the pages' slots and then the new tokens, in the mask's order; y has q's dtype."""
        self.check(subject, *self.drawn(draw, len(lengths), H, G, L, slots, D, dtype), visible_slots(lengths, slots, L))

    def test_pages_come_first(self, subject, draw):
        """The mask's first columns are the slots of the pages, the last L the new tokens: joined the other way it hides the wrong ones."""
        self.check(subject, *self.drawn(draw, 1, 2, 1, 4, 8, 8), visible_slots([3], 8, 4))

    @pytest.mark.parametrize("poison", [mx.nan, mx.inf, -mx.inf], ids=["nan", "inf", "minus-inf"])
    def test_nan_where_nobody_may_look(self, subject, draw, poison):
        """A masked value has weight 0, and 0 * NaN is NaN: what nobody may see must be replaced, not multiplied by zero."""
        inputs = self.drawn(draw, 1, 4, 2, 3, 16, 8)
        self.check(subject, *inputs, visible_slots([9], 16, 3), poison=poison)

    def test_each_row_hides_its_own_slots(self, subject, draw):
        """Rows have different lengths: a slot that row 0 may see can hold NaN in row 1, where nobody may."""
        inputs = self.drawn(draw, 3, 2, 1, 2, 8, 4)
        self.check(subject, *inputs, visible_slots([8, 1, 5], 8, 2), poison=mx.nan)

    def test_a_slot_that_only_some_queries_see(self, subject, draw):
        """Seen by one query of the row is seen: its value counts for that one. With a window early slots are lost to the later queries."""
        inputs = self.drawn(draw, 2, 2, 2, 5, 8, 4)
        self.check(subject, *inputs, visible_slots([8, 6], 8, 5, window=4), poison=mx.nan)

    def test_a_visible_nan_is_not_hidden(self, subject, draw):
        """A NaN that a query may see is a fault of the model. The engine finds it in the logits and says so: do not wash it out."""
        q, k_new, v_new, k_pages, v_pages = self.drawn(draw, 1, 1, 1, 1, 4, 3)
        v_pages = mx.where(mx.arange(4)[:, None] == 1, mx.nan, v_pages)
        mask = mx.array(visible_slots([3], 4, 1))
        returned = subject.paged_attention(q, k_new, v_new, k_pages, v_pages, mask, scale=0.3)
        y, _ = unpack(returned, 2, "y and log-sum-exp")
        assert_same(np.isnan(to_float64(y)), np.ones((1, 1, 1, 3), bool), what="y is NaN")


CHUNKS = pytest.mark.parametrize(
    "length, start, step_size", [(1, 0, 512), (7, 0, 7), (8, 0, 7), (16, 0, 8), (31, 0, 8), (9, 3, 1), (33, 9, 8), (33, 32, 8), (40, 24, 16)]
)  # fmt: skip


class TestTask4Prefill:
    def run(self, subject, rng, length, start, step_size):
        """Returns the prompt, the calls of feed as (chunk, last), and what prefill gave."""
        prompt, calls = [int(token) for token in rng.integers(0, 1000, length)], []

        def feed(chunk, last):
            calls.append(([int(token) for token in chunk], bool(last)))
            return f"{'logits' if last else 'hidden state'} of chunk {len(calls)}"

        return prompt, calls, subject.prefill(feed, prompt, start, step_size)

    @CHUNKS
    def test_every_token_once(self, subject, rng, length, start, step_size):
        """All that is not cached yet, in order and once: feed goes on where it ended, so a token fed twice is in the text twice."""
        prompt, calls, _ = self.run(subject, rng, length, start, step_size)
        assert_same([token for chunk, _ in calls for token in chunk], prompt[start:], what="tokens fed")

    @CHUNKS
    def test_sizes_of_chunks(self, subject, rng, length, start, step_size):
        """step_size tokens a chunk, counted from `start`; only the last may be shorter, and it is never empty."""
        _, calls, _ = self.run(subject, rng, length, start, step_size)
        whole, rest = divmod(length - start, step_size)
        assert_same([len(chunk) for chunk, _ in calls], [step_size] * whole + [rest] * (rest > 0), what="chunk sizes")

    @CHUNKS
    def test_logits_of_the_last_chunk_alone(self, subject, rng, length, start, step_size):
        """`last` is True for the chunk that ends the prompt, whole or shorter, and for no other: the head is the dearest product of a step."""
        _, calls, _ = self.run(subject, rng, length, start, step_size)
        whole = -(-(length - start) // step_size)
        assert_same([last for _, last in calls], [False] * (whole - 1) + [True], what="last")

    @CHUNKS
    def test_gives_the_last_logits(self, subject, rng, length, start, step_size):
        """The first token is drawn from what feed returned for the last chunk."""
        _, _, got = self.run(subject, rng, length, start, step_size)
        assert_same(got, f"logits of chunk {-(-(length - start) // step_size)}", what="what prefill returns")


class Unread:
    """A draw that lies on the device still: whoever looks into it, waits for it."""

    def __init__(self, number):
        self.number = number

    def looked_into(self, *_):
        raise Wrong("decode looks into a draw: that waits for the device", expected="only `is` and passing it on")

    __bool__ = __eq__ = __int__ = __len__ = __iter__ = __getitem__ = looked_into
    __hash__ = None


class TestTask5Decode:
    def events(self, subject, limit, ahead, take=None, first=0):
        """What happens in which order. Draws are numbers from `first` on, so the first may be 0. ahead: from what was handed out to a bool."""
        log, handed = [], []

        def advance(draw):
            log.append(f"advance {draw}")
            return draw + 1

        tokens = iter(subject.decode(advance, first, limit, lambda: ahead(len(handed))))
        for draw in islice(tokens, limit + 2 if take is None else take):
            log.append(f"hand out {draw}")
            handed.append(draw)
        return log

    def want(self, limit, ahead, take=None, first=0):
        log, handing = [], limit if take is None else take
        for i in range(handing):
            more = i < limit - 1
            advance, hand_out = [f"advance {first + i}"] * more, [f"hand out {first + i}"]
            if ahead(i):
                log += advance + hand_out
            elif i < handing - 1:
                log += hand_out + advance
            else:
                log += hand_out  # nobody has asked for the next one
        return log

    def check(self, subject, limit, ahead, take=None, first=0):
        assert_same(
            self.events(subject, limit, ahead, take, first),
            self.want(limit, ahead, take, first),
            what="order of events",
        )

    @pytest.mark.parametrize("limit", [1, 2, 7, 31])
    def test_in_step(self, subject, limit):
        """Not ahead: hand a token out, and compute the next when it is asked for. After the last there is nothing to compute."""
        self.check(subject, limit, lambda _: False, first=5)

    @pytest.mark.parametrize("limit", [1, 2, 7, 31])
    def test_ahead(self, subject, limit):
        """Ahead: the next step is enqueued before the token is handed out, once, and none after the last."""
        self.check(subject, limit, lambda _: True, first=5)

    def test_asked_anew_at_each_step(self, subject, rng):
        """The engine may find out in mid-answer that running ahead does not pay: ahead() is asked for every token."""
        flags = [True, True, False, True, False, False, *(bool(flag) for flag in rng.integers(0, 2, 9))]
        self.check(subject, 15, lambda i: flags[i], first=3)

    @pytest.mark.parametrize("take", [1, 2, 5])
    @pytest.mark.parametrize("ahead", [False, True], ids=["in step", "ahead"])
    def test_the_caller_stops_early(self, subject, take, ahead):
        """Whoever finds an end token asks no more. What was not asked for is not computed, but for one step when running ahead."""
        self.check(subject, 20, lambda _: ahead, take=take, first=1)

    @pytest.mark.parametrize("ahead", [False, True], ids=["in step", "ahead"])
    def test_nothing_before_it_is_asked_for(self, subject, ahead):
        """Making the generator computes nothing: it begins with the first next()."""
        self.check(subject, 4, lambda _: ahead, take=0)

    @pytest.mark.parametrize("ahead", [False, True], ids=["in step", "ahead"])
    def test_a_draw_may_be_zero(self, subject, ahead):
        """Token 0 is a token: "is there one already" is asked with `is None`, not by the draw's truth."""
        self.check(subject, 5, lambda _: ahead, first=-2)

    @pytest.mark.parametrize("ahead", [False, True], ids=["in step", "ahead"])
    def test_draws_are_passed_on_unread(self, subject, ahead):
        """A draw is not computed yet. To compare it, or to ask for its truth, waits for the device, and the next step starts too late."""
        draws = iter(subject.decode(lambda draw: Unread(draw.number + 1), Unread(0), 6, lambda: ahead))
        assert_same([draw.number for draw in islice(draws, 8)], [0, 1, 2, 3, 4, 5], what="draws handed out")
