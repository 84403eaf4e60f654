"""Two vocabularies with one interface: text to token ids, and a token id to its bytes.

`TokenizersVocabulary` runs a tokenizer.json through the `tokenizers` library, `SentencePieceVocabulary` a `.model` file
through `sentencepiece`. Both find special tokens in the text they encode: that is how a rendered chat template becomes
control tokens, and it holds for the user's words within it, too.
"""

import json
import re
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from tinymlx.errors import UserError
from tinymlx.hub.sentencepiece_model import without_dummy_prefix

_SPACE_MARK = "▁"  # SentencePiece's visible space
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # SentencePiece's token for one byte


class Vocabulary(Protocol):
    size: int
    """Highest token id + 1."""
    special: frozenset[int]
    """Control tokens: what `skip_special_tokens` hides. Added tokens that are text, like <think>, are not in here."""
    strips_leading_space: bool
    """Whether encoding puts a space before the text that decoding must take away."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """add_special_tokens: with what this vocabulary puts around a text, like Llama's bos."""

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 of the token, or of the part of a character that it is; b"" for an id without a token."""

    def token_id(self, text: str) -> int | None: ...

    def token_text(self, token: int) -> str | None: ...

    def save(self, folder: Path) -> dict[str, Any]:
        """Write its file into `folder`; returns what tokenizer_config.json must say for it."""


class TokenizersVocabulary:
    """A vocabulary of the `tokenizers` library: byte-level BPE (Qwen, Llama 3), or BPE with byte fallback (Llama 2)."""

    def __init__(self, backend: tokenizers.Tokenizer, origin: str):
        """origin: where it came from, for messages. Raises UserError for a decoder that is neither of the two kinds."""
        backend.no_truncation()  # a prompt is whole or refused, never cut in silence
        backend.no_padding()
        self.backend = backend
        self._added = {token: added.content for token, added in backend.get_added_tokens_decoder().items()}
        self._bytes: dict[int, bytes] = {}
        self._byte_level, self._space, self.strips_leading_space = _decoder_kind(backend.decoder, origin)
        self.special = frozenset(token for token, added in backend.get_added_tokens_decoder().items() if added.special)
        self.size = _size(backend)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def token_bytes(self, token: int) -> bytes:
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._find_bytes(token)
        return known

    def _find_bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        piece = self.backend.id_to_token(token) if token >= 0 else None
        if piece is None:
            return b""
        if self._byte_level:
            from tinymlx.hub import bpe  # which imports this module

            alphabet = bpe.byte_of_character()
            return bytes(alphabet[c] for c in piece) if all(c in alphabet for c in piece) else piece.encode()
        if byte := _BYTE_PIECE.fullmatch(piece):
            return bytes([int(byte[1], 16)])
        return piece.replace(self._space, " ").encode()

    def token_id(self, text: str) -> int | None:
        return self.backend.token_to_id(text)

    def token_text(self, token: int) -> str | None:
        return self.backend.id_to_token(token) if token >= 0 else None

    def save(self, folder: Path) -> dict[str, Any]:
        self.backend.save(str(folder / "tokenizer.json"))
        return {"tokenizer_class": "PreTrainedTokenizerFast"}


def _size(backend: tokenizers.Tokenizer) -> int:
    """Highest id + 1: the number of tokens, unless ids are missing in between. Slow to find, so only then."""
    count = backend.get_vocab_size(with_added_tokens=True)
    highest_added = max(backend.get_added_tokens_decoder(), default=-1)
    if (
        count
        and highest_added < count
        and backend.id_to_token(count - 1) is not None
        and backend.id_to_token(count) is None
    ):
        return count
    return max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def _decoder_kind(decoder: Any, origin: str) -> tuple[bool, str, bool]:
    """(byte-level?, the character that stands for a space, is a leading space to be dropped?)"""
    state = json.loads(decoder.__getstate__()) if decoder is not None else {"type": None}
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    by_type = {step["type"]: step for step in steps}
    if "ByteLevel" in by_type:
        return True, " ", False
    if "Metaspace" in by_type:
        metaspace = by_type["Metaspace"]
        return False, metaspace["replacement"], metaspace.get("prepend_scheme", "always") != "never"
    if "ByteFallback" in by_type:
        strip = by_type.get("Strip", {})
        return False, _SPACE_MARK, strip.get("content") == " " and strip.get("start", 0) > 0
    names = ", ".join(str(step["type"]) for step in steps)
    raise UserError(f"{origin}: the decoder {names} is not supported; ByteLevel, ByteFallback and Metaspace are")


class SentencePieceVocabulary:
    """A SentencePiece model, with tokens added behind its own."""

    def __init__(
        self,
        model: bytes,
        origin: str,
        *,
        added: dict[str, tuple[int, bool]] | None = None,
        bos: str | None = None,
        eos: str | None = None,
        space_after_special: bool = False,
    ):
        """model: a serialised ModelProto. added: text -> (id, special?) of tokens that the model does not hold.

        bos, eos: tokens that `add_special_tokens` puts around a text. space_after_special: whether text behind a
        special token begins with the space that the model puts before its text (llama.cpp, and transformers' "legacy":
        true); else only text at the very beginning does. Raises UserError naming `origin` for another file's bytes.
        """
        import sentencepiece

        try:
            self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
            self._unprefixed = sentencepiece.SentencePieceProcessor(model_proto=without_dummy_prefix(model))
            count = self._pieces.vocab_size()
        except (RuntimeError, OSError, TypeError, ValueError):
            raise UserError(f"{origin}: not a SentencePiece model; download it again") from None
        self.strips_leading_space = self._pieces.normalize("a") != self._unprefixed.normalize("a")
        self._space_after_special = space_after_special
        self._model = model
        control = {
            self._pieces.id_to_piece(token): token
            for token in range(count)
            if self._pieces.is_control(token) or self._pieces.is_unknown(token)
        }
        added = added or {}
        self._ids = control | {text: token for text, (token, _) in added.items()}
        self._texts = {token: text for text, token in self._ids.items()}
        self._count = count
        self.size = max([count, *(token + 1 for token, _ in added.values())])
        self.special = frozenset(control.values()) | {token for token, special in added.values() if special}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if self._ids else None
        ids = [None if text is None else self.token_id(text) for text in (bos, eos)]
        self._before, self._after = ([] if token is None else [token] for token in ids)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        tokens = [*self._before] if add_special_tokens else []
        prefixed = True
        for part in self._split.split(text) if self._split else [text]:  # text, token, text, token, ..., text
            if part in self._ids:
                tokens.append(self._ids[part])
                prefixed = self._space_after_special
            elif part:
                tokens += (self._pieces if prefixed else self._unprefixed).encode(part)
                prefixed = False
        return tokens + self._after if add_special_tokens else tokens

    def token_bytes(self, token: int) -> bytes:
        if token in self._texts:
            return self._texts[token].encode()
        if not 0 <= token < self._count:
            return b""
        piece = self._pieces.id_to_piece(token)
        if self._pieces.is_byte(token):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(_SPACE_MARK, " ").encode()

    def token_id(self, text: str) -> int | None:
        if text in self._ids:
            return self._ids[text]
        token = self._pieces.piece_to_id(text)
        return token if self._pieces.id_to_piece(token) == text else None

    def token_text(self, token: int) -> str | None:
        if token in self._texts:
            return self._texts[token]
        return self._pieces.id_to_piece(token) if 0 <= token < self._count else None

    def save(self, folder: Path) -> dict[str, Any]:
        (folder / "tokenizer.model").write_bytes(self._model)
        return {
            "tokenizer_class": "LlamaTokenizer",
            "add_bos_token": bool(self._before),
            "add_eos_token": bool(self._after),
            "legacy": self._space_after_special,
        }
