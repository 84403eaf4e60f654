"""Tokens one at a time to text, never half a character.

A token is a run of bytes, and a character may be split over tokens: an emoji's four bytes often are four tokens. The
bytes go through an incremental UTF-8 decoder, which holds an unfinished character back and turns a byte that can begin
nothing, or that breaks a character off, into U+FFFD at once.

    add(b"\\xf0\\x9f") -> ""    add(b"\\x98\\x80!") -> "😀!"    finish() -> ""
"""

import codecs
from collections.abc import Callable, Collection, Iterable

TokenBytes = Callable[[int], bytes]


class StreamingDetokenizer:
    """The text of a growing list of tokens: what `add` and `finish` return, joined, equals the whole text decoded.

    Each token costs its own bytes only; nothing is decoded twice.
    """

    def __init__(self, token_bytes: TokenBytes, *, skip: Collection[int] = (), strip_leading_space: bool = False):
        """skip: tokens that leave no trace. strip_leading_space: drop one space at the very start (SentencePiece)."""
        self._token_bytes = token_bytes
        self._skip = skip
        self._strips = strip_leading_space
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = True

    def add(self, token: int) -> str:
        """The text that `token` makes certain; may be empty."""
        if token in self._skip:
            return ""
        return self._begin(self._decoder.decode(self._token_bytes(token)))

    def finish(self) -> str:
        """What was held back: "", or U+FFFD for a character that was broken off. The detokenizer is as new then."""
        text = self._begin(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        self._at_start = True
        return text

    def _begin(self, text: str) -> str:
        if text and self._at_start:
            self._at_start = False
            if self._strips and text[0] == " ":
                return text[1:]
        return text


def decode(
    tokens: Iterable[int], token_bytes: TokenBytes, *, skip: Collection[int] = (), strip_leading_space: bool = False
) -> str:
    """The text of all `tokens` at once; what the streamed pieces join to."""
    text = b"".join(token_bytes(token) for token in tokens if token not in skip).decode("utf-8", errors="replace")
    return text[1:] if strip_leading_space and text.startswith(" ") else text
