"""Day 1.7 against the `tokenizers` library, and against float64 for what is drawn."""

import json
import math

import mlx.core as mx
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tinymlx.learn.grading import assert_close, assert_same, assert_true, roundoff, to_float64, unpack

U = roundoff(mx.float32)
WIDE = 151_936  # a row of Qwen3's logits


def random_text(rng, alphabet, length):
    return "".join(rng.choice(list(alphabet), length))


class TestTask1Alphabet:
    def test_every_byte_has_one_character(self, subject):
        """256 characters, each with another byte from 0 to 255; the dictionary goes from the character to the byte."""
        assert_same(
            sorted(map(str, subject.byte_of_character())),
            sorted(pre_tokenizers.ByteLevel.alphabet()),
            what="the characters",
        )
        assert_same(sorted(subject.byte_of_character().values()), list(range(256)), what="the bytes")

    def test_bytes_that_print_stand_for_themselves(self, subject):
        """0x21 to 0x7E, 0xA1 to 0xAC and 0xAE to 0xFF; not the space, and not the soft hyphen 0xAD, which is invisible."""
        byte_of = subject.byte_of_character()
        for byte in [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]:
            assert_same(byte_of.get(chr(byte)), byte, what=f"the byte of {chr(byte)!r}")

    def test_the_others_follow_in_order(self, subject):
        """U+0100 is the first byte that does not print, U+0101 the second: the 68 are counted, not shifted."""
        byte_of = subject.byte_of_character()
        others = [*range(0x21), *range(0x7F, 0xA1), 0xAD]
        assert_same(
            [byte_of.get(chr(0x100 + i)) for i in range(len(others))], others, what="the bytes of U+0100, U+0101, ..."
        )

    def test_text_of_the_library(self, subject, rng):
        """What the library writes for a text are the bytes of its UTF-8: "é" is two characters, "Ã©"."""
        text = "".join(map(chr, [*rng.integers(0, 0x800, 40), *rng.integers(0x4E00, 0x9FFF, 10), 0x1F600]))
        splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        written = "".join(word for word, _ in splitter.pre_tokenize_str(text))
        byte_of = subject.byte_of_character()
        assert_same([byte_of.get(c) for c in written], [*text.encode()], what=f"the bytes of {text!r}")


def trained(words, size):
    """What the library learns: merges and vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # byte characters are no white space
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([word for word, count in words.items() for _ in range(count)], trainer)
    return [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]], tokenizer.get_vocab()


def random_words(rng, alphabet, count, most=4):
    words = [random_text(rng, alphabet, length) for length in rng.integers(1, 11, count)]
    return {word: int(rng.integers(1, most)) for word in words}


def ranked(merges):
    return {pair: rank for rank, pair in enumerate(merges)}


class TestTask2Merge:
    @pytest.mark.parametrize("alphabet", ["ab", "abc", "abcdefgh"])
    def test_against_the_library(self, subject, rng, alphabet):
        """The merges of a trained tokenizer, on words that it has not seen."""
        merges, vocabulary = trained(random_words(rng, alphabet, 60), 256 + 40)
        model = models.BPE(vocabulary, merges)
        for length in [*rng.integers(1, 40, 25)]:
            word = random_text(rng, alphabet, length)
            want = [token.value for token in model.tokenize(word)]
            assert_same(subject.merge(list(word), ranked(merges)), want, what=f"the symbols of {word!r}")

    def test_the_lowest_rank_comes_first(self, subject):
        """Not the pair that stands first, and not the longest token: ("b", "c") has the lower rank, so "ab" and "abc" never arise."""
        ranks = {("b", "c"): 0, ("a", "b"): 1, ("ab", "c"): 2}
        assert_same(subject.merge(list("abcab"), ranks), ["a", "bc", "ab"], what="the symbols")

    def test_the_leftmost_of_equals_comes_first(self, subject):
        """In "aaa" both pairs have one rank: the left one is joined, and the rest looked at anew."""
        assert_same(subject.merge(list("aaa"), {("a", "a"): 0}), ["aa", "a"], what="the symbols of 'aaa'")
        assert_same(
            subject.merge(list("aaaaa"), {("a", "a"): 0, ("aa", "a"): 1}), ["aa", "aaa"], what="the symbols of 'aaaaa'"
        )

    def test_one_join_at_a_time(self, subject):
        """A join can make a pair of lower rank: in "aaaa" the first "aa" meets an "a" before the last two are joined."""
        ranks = {("aa", "a"): 0, ("a", "a"): 1}
        assert_same(subject.merge(list("aaaa"), ranks), ["aaa", "a"], what="the symbols of 'aaaa'")

    def test_it_is_the_pair_that_has_a_rank(self, subject):
        """ "a" and "bc" spell "abc", which is a token; but its merge is ("ab", "c"), so they stay apart."""
        assert_same(subject.merge(["a", "bc"], {("ab", "c"): 0}), ["a", "bc"], what="the symbols")

    def test_the_word_stays_as_it_is(self, subject):
        """A new list, also for a word of one symbol or none: whoever called still needs the word."""
        word = ["a", "b", "c"]
        assert_same(subject.merge(word, {("a", "b"): 0}), ["ab", "c"], what="the symbols")
        assert_same(word, ["a", "b", "c"], what="the word that was handed in")
        assert_same(subject.merge([], {("a", "b"): 0}), [], what="the symbols of no word")
        assert_same(subject.merge(["a"], {("a", "b"): 0}), ["a"], what="the symbols of one")


class TestTask3Train:
    def check(self, subject, words, size):
        merges, vocabulary = unpack(subject.train(words, size), 2, "merges and vocabulary")
        want_merges, want_vocabulary = trained(words, size)
        assert_same([tuple(pair) for pair in merges], want_merges, what="the merges")
        by_id = [sorted(v, key=v.get) for v in (vocabulary, want_vocabulary)]
        assert_same(*by_id, what="the vocabulary in order of ids")
        assert_same(dict(vocabulary), want_vocabulary, what="the vocabulary")

    @pytest.mark.parametrize("alphabet, count", [("ab", 7), ("abcd", 31), ("etaoinshrdluĠ", 200)])
    def test_against_the_library(self, subject, rng, alphabet, count):
        """The library's merges in its order, ties and all, and its ids."""
        self.check(subject, random_words(rng, alphabet, count), 256 + 60)

    def test_a_word_counts_as_often_as_it_occurs(self, subject):
        """One word that occurs nine times outweighs three that occur once."""
        self.check(subject, {"cde": 1, "cdf": 1, "cd": 1, "ab": 9}, 257)

    def test_ties_go_to_the_lowest_ids(self, subject):
        """Three pairs that occur three times: the ids decide, not the spelling, and not which came first. "ab" has id 256 by then."""
        self.check(subject, {"zy": 3, "abx": 3, "ab": 2, "rs": 3}, 260)
        self.check(subject, {"ba": 1, "ab": 1, "cc": 1}, 258)

    def test_pairs_that_overlap_count(self, subject):
        """ "aaa" holds the pair ("a", "a") twice, though only one of the two can be joined."""
        self.check(subject, {"aaa": 2, "bc": 3}, 257)

    def test_words_do_not_touch(self, subject):
        """The last character of a word and the first of the next are no pair."""
        self.check(subject, {"ab": 1, "cd": 1, "ef": 1, "b": 5, "c": 5}, 300)

    def test_where_it_begins_and_ends(self, subject):
        """256 byte characters in order of code point, needed or not; it ends at `size`, or when there is nothing left to join."""
        for size in (0, 256, 257, 10_000):
            self.check(subject, {"low": 2, "lower": 1, "Ġlow": 1}, size)


class TestTask4Special:
    def test_against_the_library(self, subject, rng):
        """Texts that are full of tokens, of beginnings of tokens, and of tokens within tokens."""
        pool = ["<a>", "<a", "<aa>", "a>", ">", "<>", "<b>", "|", ".*", "b|", "a><"]
        for _ in range(60):
            special = {pool[i] for i in rng.choice(len(pool), rng.integers(0, 7), replace=False)}
            text = random_text(rng, "<a>b|.*", rng.integers(0, 30))
            library = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
            library.add_special_tokens(sorted(special))
            parts = [text[start:stop] for start, stop in library.encode(text).offsets]
            want = [(part, part in special) for part in parts]
            assert_same(
                [tuple(p) for p in subject.split_special(text, special)],
                want,
                what=f"{text!r} cut at {sorted(special)}",
            )

    def test_no_part_is_empty(self, subject):
        """Nothing stands between two tokens side by side, nor before the first: no part for it. An empty text has no parts."""
        special = {"<|im_start|>", "<|im_end|>"}
        both = [("<|im_start|>", True), ("<|im_end|>", True)]
        assert_same(subject.split_special("<|im_start|><|im_end|>", special), both, what="the parts")
        assert_same(subject.split_special("", special), [], what="the parts of an empty text")

    def test_no_special_tokens(self, subject):
        """A tokenizer may have none: the text is one part."""
        assert_same(subject.split_special("a|b", set()), [("a|b", False)], what="the parts")

    def test_the_longest_of_those_that_start_together(self, subject):
        """ "<|end|>" and "<|end|>\\n" start at the same place: the longer one counts, in whatever order they are given."""
        for special in (["<|end|>", "<|end|>\n"], ["<|end|>\n", "<|end|>"]):
            want = [("a", False), ("<|end|>\n", True), ("b", False), ("<|end|>", True)]
            assert_same(subject.split_special("a<|end|>\nb<|end|>", special), want, what="the parts")

    def test_the_first_of_those_that_overlap(self, subject):
        """ "ab" starts before "bcd", so it counts though it is shorter."""
        assert_same(subject.split_special("abcd", ["bcd", "ab"]), [("ab", True), ("cd", False)], what="the parts")

    def test_characters_that_mean_something_in_patterns(self, subject):
        """The tokens are text: "|" in them is no "or" and "." no "anything"."""
        want = [("x", False), ("<|end|>", True), ("end", False), ("a.c", True), ("abc", False)]
        assert_same(subject.split_special("x<|end|>enda.cabc", {"<|end|>", "a.c"}), want, what="the parts")


def largest_first(rng, *shape):
    return np.sort(rng.exponential(1, shape).astype(np.float32) ** 3, axis=-1)[..., ::-1].copy()


class TestTask5TopP:
    @pytest.mark.parametrize("N", [1, 7, 31, 33, 128, 384])
    def test_against_float64(self, subject, rng, N):
        """The fewest largest weights that reach top_p of their row's sum; the others are 0, and these as they were."""
        weights, top_p = largest_first(rng, 8, N), rng.uniform(0.05, 0.99, (8, 1)).astype(np.float32)
        got = subject.keep_top_p(mx.array(weights), mx.array(top_p))
        exact = weights.astype(np.float64)
        before, border = np.cumsum(exact, -1) - exact, top_p * exact.sum(-1, keepdims=True)
        # N additions on each side and a product: so near the border either answer is right.
        near = np.abs(before - border) <= (2 * N + 4) * U * exact.sum(-1, keepdims=True)
        if N > 1:
            near[:, 0] = False
        values = to_float64(got) if isinstance(got, mx.array) and got.shape == exact.shape else exact
        want = np.where(near, values, np.where((before < border) | (np.arange(N) == 0), exact, 0))
        assert_close(got, want, 0, dtype=mx.float32, what="weights")

    def test_the_set_reaches_top_p_and_no_more(self, subject):
        """Sums that are exact in float32: the weight that crosses the border stays; once it is reached exactly, the next one goes."""
        weights = mx.array([[0.5, 0.25, 0.125, 0.125]] * 4)
        got = subject.keep_top_p(weights, mx.array([[0.5], [0.6], [0.75], [0.76]]))
        want = np.array([[0.5, 0, 0, 0], [0.5, 0.25, 0, 0], [0.5, 0.25, 0, 0], [0.5, 0.25, 0.125, 0]])
        assert_close(got, want, 0, what="weights")

    def test_the_first_always_stays(self, subject, rng):
        """1e-300 is 0 in float32, and no sum is below 0: without the first there would be nothing to draw from."""
        weights = largest_first(rng, 3, 33)
        got = subject.keep_top_p(mx.array(weights), mx.array([[1e-300], [1e-30], [1e-9]]))
        assert_close(got, np.where(np.arange(33) == 0, weights, 0).astype(np.float64), 0, what="weights")

    def test_infinity_keeps_all(self, subject, rng):
        """Off is infinity: at 1 the last weights could be lost to rounding. Zeros from an earlier filter stay zeros."""
        weights = np.where(np.arange(128) < 100, largest_first(rng, 2, 128), 0)
        got = subject.keep_top_p(mx.array(weights.astype(np.float32)), mx.full((2, 1), math.inf))
        assert_close(got, weights.astype(np.float64), 0, what="weights")

    def test_weights_need_not_sum_to_1(self, subject):
        """The border is top_p of the row's own sum, whatever that is."""
        weights = mx.array([[4.0, 2, 1, 1], [4e-6, 2e-6, 1e-6, 1e-6], [4e6, 2e6, 1e6, 1e6]])
        want = to_float64(weights) * [1, 1, 0, 0]
        assert_close(subject.keep_top_p(weights, mx.full((3, 1), 0.6)), want, 0, what="weights")

    def test_a_long_flat_tail(self, subject):
        """1 and then 151,935 times 2.9e-8: one float32 sum, weight by weight, stays 1 for ever, and the border is never where it should be."""
        weights = np.full((1, WIDE), 2.9e-8, np.float32)
        weights[0, 0] = 1
        total = weights.sum(dtype=np.float64)
        got = subject.keep_top_p(mx.array(weights), mx.array([[0.9978]]))
        kept, want = int((got > 0).sum().item()), int((np.float32(0.9978) * total - 1) / 2.9e-8)
        fits = abs(kept - want) < 0.05 * WIDE  # the product sums in blocks of 128 and may be off by 1.6 %
        assert_true(
            fits, "how many of 151,936 are kept", expected=f"{want} give or take {0.05 * WIDE:.0f}", got=str(kept)
        )


def uniform(rng, count):
    """[count, 2]: the middles of 2^23 cells, as the engine hands them out."""
    return ((2 * rng.integers(0, 2**23, (count, 2)) + 1) / 2**24).astype(np.float32)


def indices(got, rows, width):
    """As NumPy, after a look at the form."""
    assert_true(isinstance(got, mx.array), "the result is no MLX array", expected="mx.array", got=type(got).__name__)
    assert_true(got.shape == (rows,), "the result has another shape", expected=f"[{rows}]", got=str(list(got.shape)))
    found = np.array(got)
    assert_true(
        found.dtype.kind in "iu", "the result holds no integers", expected="int32 or uint32", got=str(got.dtype)
    )
    assert_true(
        found.min() >= 0 and found.max() < width,
        "an index that there is not",
        expected=f"0 to {width - 1}",
        got=str(found.max()),
    )
    return found.astype(np.int64)


def check_counts(found, probabilities):
    """Each index as often as it should be drawn. Bernstein's inequality: a right answer is refused once in 10^12 indices."""
    count, log = len(found), math.log(2e12)
    expected = count * probabilities
    bound = log / 3 + np.sqrt(log**2 / 9 + 2 * log * expected * (1 - probabilities))
    seen = np.bincount(found, minlength=len(probabilities))
    worst = int(np.argmax(np.abs(seen - expected) / bound))
    assert_true(
        abs(seen[worst] - expected[worst]) <= bound[worst],
        f"how often index {worst} came in {count} draws",
        expected=f"{expected[worst]:.0f} give or take {bound[worst]:.0f}",
        got=str(seen[worst]),
    )


class TestTask6Pick:
    def draw(self, subject, weights, u):
        return indices(subject.pick(mx.array(weights.astype(np.float32)), mx.array(u)), *weights.shape)

    @pytest.mark.parametrize("N", [1, 7, 33, 128, 384])
    def test_frequencies(self, subject, rng, N):
        """20,000 draws from one row: each index comes as often as its share of the sum says. 384 lanes are three blocks of 128."""
        weights = rng.exponential(1, N) ** 2
        weights[N // 2 :] *= 5  # so that blocks, too, differ
        found = self.draw(subject, np.broadcast_to(weights, (20_000, N)), uniform(rng, 20_000))
        check_counts(found, weights / weights.sum())

    def test_a_few_that_are_likely(self, subject, rng):
        """Three weights of 384, far apart: 1, 2 and 5 parts of 8. Nothing else comes."""
        weights = np.zeros(384)
        weights[[5, 130, 383]] = 1, 2, 5
        found = self.draw(subject, np.broadcast_to(weights, (4000, 384)), uniform(rng, 4000))
        assert_true(
            set(found) <= {5, 130, 383},
            "an index of weight 0 was drawn",
            expected="5, 130 or 383",
            got=str(set(found) - {5, 130, 383}),
        )
        check_counts(found, weights / 8)

    def test_each_row_by_itself(self, subject, rng):
        """Every row has weights and numbers of its own: one weight a row leaves no choice, and two kinds of rows do not mix."""
        at = rng.integers(0, 33, 50)
        assert_same(
            self.draw(subject, np.eye(33)[at], uniform(rng, 50)), at, what="the indices of rows with one weight"
        )
        odd, even = rng.exponential(1, 31) + 0.1, rng.exponential(30, 31) + 0.1
        found = self.draw(subject, np.tile([odd, even], (5000, 1)), uniform(rng, 10_000))
        check_counts(found[::2], odd / odd.sum())
        check_counts(found[1::2], even / even.sum())

    @pytest.mark.parametrize("total", [1e-6, 1.0, 1e6])
    def test_weights_need_not_sum_to_1(self, subject, rng, total):
        """Probabilities are weights over their row's sum."""
        weights = rng.exponential(1, 8) + 0.1
        weights *= total / weights.sum()
        found = self.draw(subject, np.broadcast_to(weights, (10_000, 8)), uniform(rng, 10_000))
        check_counts(found, weights / weights.sum())

    @pytest.mark.parametrize("N", [8, 33, 384])
    def test_never_an_index_of_weight_zero(self, subject, rng, N):
        """Not with the smallest number u nor with the largest, and wherever the zeros stand: first, last, or a whole block of them."""
        edge = [2**-24, 3 * 2**-24, 0.5, 1 - 3 * 2**-24, 1 - 2**-24]
        u = np.array([[a, b] for a in edge for b in edge], np.float32)
        for zeros in (slice(0, N // 2), slice(N // 2, N), slice(1, N - 1), slice(1, None), slice(0, N - 1)):
            weights = rng.exponential(1, (len(u), N)) + 1e-3
            weights[:, zeros] = 0
            found = self.draw(subject, weights, u)
            drawn = weights[np.arange(len(u)), found]
            assert_true(
                (drawn > 0).all(),
                f"row {int(drawn.argmin())}: an index of weight 0 was drawn",
                got=str(found[drawn.argmin()]),
            )

    def test_a_long_flat_tail(self, subject):
        """1 and then 151,935 times 2.9e-8: together 0.44 % of the sum, but each of them less than float32 can add to 1."""
        weights = np.full(WIDE, 2.9e-8, np.float32)
        weights[0] = 1
        total = weights.sum(dtype=np.float64)
        u = np.array([[0.5, 0.5], [0.9965, 0.5], [0.998, 0.2], [0.9998, 0.8]], np.float32)
        found = self.draw(subject, np.broadcast_to(weights, (4, WIDE)), u)
        for index, (first, _) in zip(found.tolist(), u.astype(np.float64)):
            want = max(0, (first * total - 1) / 2.9e-8)
            assert_true(
                abs(index - want) < 0.05 * WIDE,
                f"the index drawn by u[:, 0] = {first:.4f} from 1 and 151,935 times 2.9e-8",
                expected=f"{want:.0f} give or take {0.05 * WIDE:.0f}",
                got=str(index),
            )
