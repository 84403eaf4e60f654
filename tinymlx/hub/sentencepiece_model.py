"""SentencePiece models as bytes: a ModelProto, written field by field, so that no protobuf library is needed.

Source: sentencepiece_model.proto in the sentencepiece repository; the numbers below are its field numbers.
"""

import struct

# ModelProto.SentencePiece.Type; llama.cpp's token types (tokenizer.ggml.token_type) are the same.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def sentencepiece_model(
    tokens: list[str], scores: list[float], types: list[int], *, add_dummy_prefix: bool, remove_extra_whitespaces: bool
) -> bytes:
    """A serialised model of type BPE, one token, score and type a piece."""
    pieces = b"".join(
        _field(1, _field(1, token.encode()) + b"\x15" + struct.pack("<f", score) + _field(3, kind))
        for token, score, kind in zip(tokens, scores, types, strict=True)
    )
    trainer = _field(3, 2) + _field(35, int(BYTE in types))  # model_type BPE, byte_fallback
    whitespace = _field(3, int(add_dummy_prefix)) + _field(4, int(remove_extra_whitespaces)) + _field(5, 1)
    normalizer = _field(1, b"identity") + whitespace  # name; a space is written as ▁
    return pieces + _field(2, trainer) + _field(3, normalizer)


def without_dummy_prefix(model: bytes) -> bytes:
    """The same model, not putting a space before its text: a field that comes again overrides the one before it."""
    return model + _field(3, _field(3, 0))


def _field(number: int, value: int | bytes) -> bytes:
    """One protobuf field: a varint, or bytes with their length before them."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])
