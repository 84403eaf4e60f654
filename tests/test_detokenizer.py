"""Streamed text: never half a character, and joined it is the whole text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import gpt2_pre_tokenizer, qwen3_folder, train_byte_level, train_sentencepiece

from tinymlx.hub.detokenizer import StreamingDetokenizer, decode
from tinymlx.hub.source import ModelSource
from tinymlx.hub.tokenizer import Tokenizer, load_tokenizer
from tinymlx.hub.vocabulary import SentencePieceVocabulary, TokenizersVocabulary

pytestmark = pytest.mark.capability("tokenizers, chat templates, streamed text")


def stream(pieces: list[bytes], **options) -> list[str]:
    """What each token gives, and at last what finish gives."""
    detokenizer = StreamingDetokenizer(pieces.__getitem__, **options)
    return [detokenizer.add(token) for token in range(len(pieces))] + [detokenizer.finish()]


def tokens_of(text: bytes) -> list[bytes]:
    return [bytes([b]) for b in text]


def test_an_emoji_over_four_tokens():
    assert stream(tokens_of("a😀b".encode())) == ["a", "", "", "", "😀", "b", ""]


def test_an_emoji_over_tokens_that_hold_other_text():
    assert stream([b"hi \xf0\x9f", b"\x98\x80!", b""]) == ["hi ", "😀!", "", ""]


def test_an_invalid_byte_followed_by_a_space():
    assert stream([b"a", b"\xff", b" ", b"b"]) == ["a", "\ufffd", " ", "b", ""]
    assert stream([b"a", b"\xe2\x82", b" b"]) == ["a", "", "\ufffd b", ""]


def test_a_character_broken_off_at_the_end():
    assert stream([b"a\xf0\x9f"]) == ["a", "\ufffd"]


def test_finish_begins_anew():
    detokenizer = StreamingDetokenizer([b" a", b"\xe2"].__getitem__, strip_leading_space=True)
    for _ in range(2):
        assert [detokenizer.add(0), detokenizer.add(1), detokenizer.finish()] == ["a", "", "\ufffd"]


def test_skipped_tokens_leave_no_trace_even_within_a_character():
    assert stream([b"<s>", b"\xc3", b"<s>", b"\xa9"], skip={0, 2}) == ["", "", "", "é", ""]


def test_one_leading_space_goes():
    assert stream([b" ", b" a", b" b"], strip_leading_space=True) == ["", " a", " b", ""]
    assert stream([b"", b" ", b"\xe2"], strip_leading_space=True) == ["", "", "", "\ufffd"]
    assert stream([b"\xe2", b" "], strip_leading_space=True) == ["", "\ufffd ", ""]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=4), st.sampled_from(tokens_of("é€😀 ".encode()) + [b"\xff", b"\xe0\x80"]))),
    st.booleans(),
    st.sets(st.integers(0, 8)),
)
def test_joined_is_the_whole_text(pieces, strip, skip):
    streamed = stream(pieces, strip_leading_space=strip, skip=skip)
    whole = decode(range(len(pieces)), pieces.__getitem__, skip=skip, strip_leading_space=strip)
    assert "".join(streamed) == whole
    kept = b"".join(piece for token, piece in enumerate(pieces) if token not in skip)
    assert whole == kept.decode("utf-8", "replace").removeprefix(" " if strip else "")


@settings(max_examples=150, deadline=None)
@given(st.text(), st.data())
def test_text_cut_anywhere_never_shows_a_replacement(text, data):
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    streamed, shown = stream(pieces), ""
    for piece in streamed:
        shown += piece
        assert text.startswith(shown)
    assert shown == text


def test_a_token_costs_only_itself():
    asked = []

    def token_bytes(token):
        asked.append(token)
        return b"\xe2\x82\xac"[token % 3 :][:1]

    detokenizer = StreamingDetokenizer(token_bytes)
    for token in range(3000):
        detokenizer.add(token)
    assert asked == list(range(3000))


# With vocabularies.


@pytest.fixture(scope="module")
def byte_level():
    return Tokenizer(TokenizersVocabulary(train_byte_level(gpt2_pre_tokenizer()), "small"), origin="small")


@pytest.fixture(scope="module")
def sentencepiece_tokenizer():
    return Tokenizer(SentencePieceVocabulary(train_sentencepiece(), "small"), origin="small")


@pytest.fixture(scope="module")
def qwen3():
    return load_tokenizer(ModelSource("qwen3", qwen3_folder(), "safetensors"))


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece_tokenizer", "qwen3"])
@pytest.mark.parametrize("skip", [True, False])
def test_random_tokens(request, name, skip):
    tokenizer = request.getfixturevalue(name)

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=30))
    def check(tokens):
        detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
        text = "".join([detokenizer.add(token) for token in tokens] + [detokenizer.finish()])
        assert text == tokenizer.decode(tokens, skip_special_tokens=skip)

    check()


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece_tokenizer", "qwen3"])
def test_text_streams_as_it_is(request, name):
    tokenizer = request.getfixturevalue(name)
    text = "Grüße 😀👩‍👩‍👧 世界 \n\n  naïve é"
    detokenizer = tokenizer.detokenizer()
    pieces = [detokenizer.add(token) for token in tokenizer.encode(text)] + [detokenizer.finish()]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_think_is_shown_and_control_tokens_are_not(byte_level):
    tokens = byte_level.encode("<think>a</think>b<|im_end|>")
    assert byte_level.decode(tokens, skip_special_tokens=True) == "<think>a</think>b"
    detokenizer = byte_level.detokenizer(skip_special_tokens=False)
    assert "".join(map(detokenizer.add, tokens)) == "<think>a</think>b<|im_end|>"
