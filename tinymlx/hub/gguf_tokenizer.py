"""The tokenizer in a GGUF file's metadata, rebuilt as the one it was converted from.

`tokenizer.ggml.model` names the kind: "gpt2" is byte-level BPE, whose pre-tokenizer is only a name
(`tokenizer.ggml.pre`) that must be known here; "llama" is SentencePiece, rebuilt as a SentencePiece model and run by
that library. Source of the names and what they stand for: llama.cpp's llama-vocab; of the pipelines: each model's own
tokenizer.json.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from tinymlx.errors import UserError
from tinymlx.hub.gguf_format import GGUFFile, read_gguf
from tinymlx.hub.sentencepiece_model import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, sentencepiece_model
from tinymlx.hub.tokenizer import Tokenizer
from tinymlx.hub.vocabulary import SentencePieceVocabulary, TokenizersVocabulary, Vocabulary

# Control tokens that end an answer, whatever the file calls its eos: a chat model's turn end is often not named there.
ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>")


def _byte_level(*patterns: str) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _modern(digits: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return lambda: _byte_level(pattern)


def _default() -> pre_tokenizers.PreTokenizer:
    words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
    return _byte_level(r"[\p{P}\$\+<=>\^~\|]+", words, r"\p{N}+", "[0-9][0-9][0-9]")


class _Pipeline(NamedTuple):
    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer]
    normalizer: Callable[[], Any] | None = None
    ignore_merges: bool = False  # a whole word that is a token stays one, even if no merges lead to it
    add_bos: bool = False  # where the file does not say


_LLAMA3 = _Pipeline(_modern(r"\p{N}{1,3}"), ignore_merges=True, add_bos=True)

PIPELINES = {
    "default": _Pipeline(_default),
    "gpt-2": _Pipeline(_gpt2),
    "phi-2": _Pipeline(_gpt2),
    "olmo": _Pipeline(_gpt2),
    "smollm": _Pipeline(_single_digits),
    "starcoder": _Pipeline(_single_digits),
    "refact": _Pipeline(_single_digits),
    "qwen2": _Pipeline(_modern(r"\p{N}"), normalizers.NFC),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}


def tokenizer_of_gguf(path: Path) -> Tokenizer:
    """The tokenizer of the GGUF file `path`, chat template included.

    Raises UserError naming the metadata key: one is missing or of the wrong form, or the tokenizer's kind or
    pre-tokenizer is
    not known here.
    """
    return _Metadata(read_gguf(path)).tokenizer()


class _Metadata:
    def __init__(self, file: GGUFFile):
        self.file = file
        tokens, types = self.get("tokens", list), self.array("token_type", "iu")
        if len(types) != len(tokens) or not np.isin(types, range(NORMAL, BYTE + 1)).all():
            self.fail("token_type", f"is not one type, 1 to 6, for each of {len(tokens)} tokens")
        # Rows that pad the embedding have names like [PAD151936] and the type "unused"; at the end they are no tokens.
        count = int(np.flatnonzero(types != UNUSED).max(initial=-1)) + 1
        self.tokens, self.types = tokens[:count], types[:count]
        if not self.tokens or len(set(self.tokens)) != count:
            self.fail("tokens", "is empty or names a token twice")

    def fail(self, name: str, what: str) -> NoReturn:
        raise UserError(f"{self.file.path}: metadata key tokenizer.ggml.{name} {what}")

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        value = self.file.metadata.get(f"tokenizer.ggml.{name}", default)
        if value is None and default is None:
            self.fail(name, "is missing; convert the model again with a current llama.cpp")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.fail(name, f"is {type(value).__name__}, not {kind.__name__}")
        return value

    def array(self, name: str, kinds: str) -> np.ndarray:
        """A numeric array whose numpy kind is among `kinds`."""
        values = self.get(name, np.ndarray)
        if values.dtype.kind not in kinds:
            self.fail(name, f"holds {values.dtype} numbers")
        return values

    def tokenizer(self) -> Tokenizer:
        names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
        ids = {name: token for name, key in names.items() if (token := self.token(key)) is not None}
        kind = self.get("model", str)
        if kind == "gpt2":
            vocabulary: Vocabulary = self.byte_level(ids)
        elif kind == "llama":
            vocabulary = self.sentencepiece(ids)
        else:
            self.fail("model", f"is {kind!r}; supported are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece)")
        ends = {token for key in ("eos", "eot", "eom") if (token := self.token(key)) is not None}
        ends |= {
            token for text in ENDS if (token := vocabulary.token_id(text)) is not None and self.types[token] == CONTROL
        }
        return Tokenizer(
            vocabulary,
            origin=str(self.file.path),
            special_tokens={name: self.tokens[token] for name, token in ids.items()},
            eos_token_ids=ends,
            chat_templates=self.chat_templates(),
        )

    def around(self, ids: dict[str, int], add_bos: bool) -> tuple[str | None, str | None]:
        """The tokens put before and after a text, None for none. add_bos: where the file does not say."""
        bos, eos = ids.get("bos_token"), ids.get("eos_token")
        before, after = self.get("add_bos_token", bool, add_bos), self.get("add_eos_token", bool, False)
        return (
            self.tokens[bos] if before and bos is not None else None,
            self.tokens[eos] if after and eos is not None else None,
        )

    def token(self, name: str) -> int | None:
        """The id in `<name>_token_id`; None where the file does not give one."""
        if f"tokenizer.ggml.{name}_token_id" not in self.file.metadata:
            return None
        token = self.get(f"{name}_token_id", int)
        if not 0 <= token < len(self.tokens):
            self.fail(f"{name}_token_id", f"is {token}, but there are {len(self.tokens)} tokens")
        return token

    def chat_templates(self) -> dict[str, str]:
        prefix = "tokenizer.chat_template"
        found = {"default": self.file.metadata.get(prefix), "tool_use": self.file.metadata.get(f"{prefix}.tool_use")}
        return {name: text for name, text in found.items() if isinstance(text, str) and text}

    def pipeline(self) -> _Pipeline:
        name = self.get("pre", str)
        if name not in PIPELINES:
            self.fail("pre", f"is {name!r}; known pre-tokenizers are {', '.join(PIPELINES)}")
        return PIPELINES[name]

    def byte_level(self, ids: dict[str, int]) -> TokenizersVocabulary:
        pipeline = self.pipeline()
        merges = [tuple(merge.split(" ")) for merge in self.get("merges", list)]
        if not all(len(merge) == 2 for merge in merges):
            self.fail("merges", "has an entry that is not two tokens and a space between them")
        vocabulary = {token: index for index, token in enumerate(self.tokens)}
        try:
            backend = Backend(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pipeline.ignore_merges))
        except Exception as error:  # the library raises plain Exception
            self.fail("merges", f"does not fit the tokens ({str(error).splitlines()[0][:200]})")
        backend.normalizer = pipeline.normalizer() if pipeline.normalizer else None
        backend.pre_tokenizer = pipeline.pre_tokenizer()
        backend.decoder = decoders.ByteLevel()
        backend.add_tokens([
            AddedToken(self.tokens[index], normalized=False, special=bool(self.types[index] != USER_DEFINED))
            for index in np.flatnonzero(np.isin(self.types, (UNKNOWN, CONTROL, USER_DEFINED)))
        ])  # fmt: skip
        bos, eos = self.around(ids, pipeline.add_bos)
        added = [(token, backend.token_to_id(token)) for token in (bos, eos) if token is not None]
        if added:
            single = [token for token in (bos, "$A", eos) if token is not None]
            backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=added)
        return TokenizersVocabulary(backend, str(self.file.path))

    def sentencepiece(self, ids: dict[str, int]) -> SentencePieceVocabulary:
        scores = self.array("scores", "f")[: len(self.tokens)]
        if len(scores) != len(self.tokens):
            self.fail("scores", f"has {len(scores)} entries for {len(self.tokens)} tokens")
        model = sentencepiece_model(
            self.tokens,
            scores.tolist(),
            self.types.tolist(),
            add_dummy_prefix=self.get("add_space_prefix", bool, True),
            remove_extra_whitespaces=self.get("remove_extra_whitespaces", bool, False),
        )
        bos, eos = self.around(ids, add_bos=True)
        return SentencePieceVocabulary(model, str(self.file.path), bos=bos, eos=eos, space_after_special=True)
