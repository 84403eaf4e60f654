"""Stop strings: whatever the pieces, exactly the text before the first one comes out."""

from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tinymlx.engine.stop import StopMatcher, check_stops
from tinymlx.errors import UserError

pytestmark = pytest.mark.capability("stop strings")


def stream(pieces, stops):
    """All that is emitted, and whether a stop string ended it."""
    matcher = StopMatcher(stops)
    shown = [matcher.add(piece)[0] for piece in pieces]
    return "".join(shown) + matcher.finish(), matcher.stopped


def before_first(text, stops):
    starts = [text.find(stop) for stop in stops if stop in text]
    return (text[: min(starts)], True) if starts else (text, False)


def cut(text, borders):
    borders = sorted({0, len(text), *(b % (len(text) + 1) for b in borders)})
    return [text[a:b] for a, b in zip(borders, borders[1:], strict=False)]


few_letters = st.text("ab", max_size=30)


@given(
    few_letters,
    st.lists(st.text("ab", min_size=1, max_size=7), max_size=4),
    st.lists(st.integers(0, 30), max_size=10),
)
@example("aababb", ["aabb", "bab"], [1, 2, 3, 4, 5])
@example("xabcabd", ["abcabd"], [4])
@example("abc", ["abcd", "bc"], [1, 2])  # "bc" is whole, but the text ends before "abcd" is decided
@example("abcd", ["abcd", "bc"], [1, 2, 3])  # "abcd" starts first
def test_any_chunking_gives_the_text_before_the_first_stop(text, stops, borders):
    assert stream(cut(text, borders), stops) == before_first(text, stops)


def test_all_short_texts_and_pairs_of_stops():
    """Every text of six letters a and b, every ordered pair of stops up to three, in pieces of one and of four."""
    words = ["".join(letters) for n in range(1, 4) for letters in product("ab", repeat=n)]
    texts = ["".join(letters) for letters in product("ab", repeat=6)]
    for stops in product(words, repeat=2):
        for text in texts:
            expected = before_first(text, stops)
            assert stream(text, stops) == expected
            assert stream((text[:4], text[4:]), stops) == expected


@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=3), max_size=3), st.lists(st.integers(0, 40)))
def test_any_text(text, stops, borders):
    assert stream(cut(text, borders), stops) == before_first(text, stops)


@given(few_letters, st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=3))
def test_nothing_leaks_and_no_more_than_needed_is_held(text, stops):
    """After each character, what is shown is all that no stop string can still begin in."""
    matcher = StopMatcher(stops)
    shown = ""
    for i, character in enumerate(text):
        piece, stopped = matcher.add(character)
        shown += piece
        read = text[: i + 1]
        assert read.startswith(shown)
        whole = [read.find(stop) for stop in stops if stop in read]
        begun = [j for j in range(len(read)) for stop in stops if stop.startswith(read[j:]) and stop != read[j:]]
        end = min(whole, default=None)
        assert stopped == (end is not None and not any(j < end for j in begun))
        if stopped:
            assert shown == read[:end]
            break
        assert len(shown) == min([len(read), *begun, *whole])


def test_across_token_borders_and_inside_one_token():
    assert stream(["Hello", " wor", "ld<|", "im_", "end|", ">never"], ["<|im_end|>"]) == ("Hello world", True)
    assert stream(["one STOP two"], ["STOP"]) == ("one ", True)
    assert stream(["STOP"], ["STOP"]) == ("", True)


def test_what_was_held_back_is_not_lost():
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.add("Yes.\n") == ("Yes.", False)
    assert matcher.add("\nUse ") == ("\n\nUse ", False)
    assert matcher.add("\n\nUs") == ("", False)
    assert matcher.finish() == "\n\nUs"
    assert not matcher.stopped


def test_the_stop_that_starts_first_wins():
    assert stream("abcd", ["bc", "abcd"]) == ("", True)
    matcher = StopMatcher(["bc", "abcd"])
    assert [matcher.add(c) for c in "xabc"] == [("x", False), ("", False), ("", False), ("", False)]
    assert matcher.add("x") == ("a", True)  # "abcd" is out, so "bc" was the first


def test_of_stops_that_start_together_the_shorter_ends_at_once():
    assert StopMatcher(["ab", "abc"]).add("xab") == ("x", True)


def test_a_stop_still_undecided_at_the_end():
    matcher = StopMatcher(["bc", "abcd"])
    assert matcher.add("abc") == ("", False)
    assert matcher.finish() == "a"
    assert matcher.stopped


def test_nothing_comes_after_the_end():
    matcher = StopMatcher(["x"])
    assert matcher.add("ax") == ("a", True)
    assert matcher.add("b") == ("", True)
    assert matcher.finish() == ""


def test_no_stops_pass_everything():
    matcher = StopMatcher([])
    assert matcher.add("abc") == ("abc", False)
    assert matcher.finish() == ""


def test_an_empty_piece_releases_nothing():
    matcher = StopMatcher(["ab"])
    assert matcher.add("a") == ("", False)
    assert matcher.add("") == ("", False)
    assert matcher.add("b") == ("", True)


@pytest.mark.timeout(20)
def test_a_long_stop_string_costs_a_step_a_character():
    stop = "a" * 20_000 + "b"
    text = "a" * 40_000 + "b"
    assert stream(text, [stop]) == ("a" * 20_000, True)


def test_one_string_is_one_stop():
    assert check_stops("END") == ("END",)
    assert check_stops(["a", "b", "a"]) == ("a", "b")


@pytest.mark.parametrize("stops", ["", ["a", ""], [1, 2], [None], 3, {"a": 1}])
def test_refuses_what_is_not_a_stop_string(stops):
    with pytest.raises(UserError, match=r"^stop (is|holds) [^\n]*$"):
        check_stops(stops)
