"""Stop strings: end a streamed text just before the first of them, wherever the token borders fall."""

from collections.abc import Sequence

from tinymlx.errors import UserError


def check_stops(stops: str | Sequence[str]) -> tuple[str, ...]:
    """The stop strings as a tuple without repeats: `"END"` -> `("END",)`.

    Raises UserError for an empty string and for anything that is not text.
    """
    if isinstance(stops, str):
        stops = (stops,)
    if not isinstance(stops, Sequence):
        raise UserError(f"stop is {stops!r}; a string or a list of strings is accepted")
    for stop in stops:
        if not isinstance(stop, str):
            raise UserError(f"stop holds {stop!r}; only strings are accepted")
        if not stop:
            raise UserError("stop holds an empty string, which would end every text; leave it out")
    return tuple(dict.fromkeys(stops))


class StopMatcher:
    """Cuts a text that arrives in pieces just before its first stop string.

    >>> matcher = StopMatcher(["</s>"])
    >>> matcher.add("Hello <"), matcher.add("/s> never shown")
    (('Hello ', False), ('', True))

    Whatever the pieces, what is emitted in all is `text[:i]`, where `i` is the lowest index at which any stop string
    occurs in `text`, or all of `text`. So of two overlapping stop strings the one that *starts* first counts; of two
    that start together either gives the same text, and the shorter ends it sooner. A text is held back only while it
    may still be the beginning of a stop string: at most the length of the longest, less one.

    Source: OpenAI API reference, `stop`: the returned text does not contain the stop sequence. Matching is the
    Knuth-Morris-Pratt automaton, a step per character and stop string, however long the stop strings are.
    """

    def __init__(self, stops: str | Sequence[str]):
        self._stops = check_stops(stops)
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)  # characters of each stop string that the text now ends with
        self._held = ""  # read, not yet emitted
        self._end: int | None = None  # where in _held the first whole stop string starts
        self.stopped = False

    def add(self, text: str) -> tuple[str, bool]:
        """Reads the next piece. Returns the text that may be shown now, and whether a stop string has ended it.

        After the end every further piece is dropped: `("", True)`.
        """
        if self.stopped:
            return "", True
        if not self._stops:
            return text, False
        first = len(self._held) + 1
        self._held += text
        for read, character in enumerate(text, first):
            self._step(read, character)
            if self._end is not None and self._undecided(read) >= self._end:
                return self._stop(), True
        return self._emit(self._undecided(len(self._held))), False

    def finish(self) -> str:
        """The text has ended: returns what was held back of it. `stopped` says whether a stop string ended it.

        >>> matcher = StopMatcher(["</s>"]); matcher.add("a </")
        ('a ', False)
        >>> matcher.finish()
        '</'
        """
        if self._end is not None:
            return self._stop()
        return self._emit(len(self._held))

    def _step(self, read: int, character: str) -> None:
        """One more character, after which `read` characters of the held text are read."""
        for i, stop in enumerate(self._stops):
            matched = _extend(stop, self._borders[i], self._matched[i], character)
            if matched == len(stop):
                start = read - matched
                self._end = start if self._end is None else min(self._end, start)
                matched = 0  # the same stop string again would start later, which no longer matters
            self._matched[i] = matched

    def _undecided(self, read: int) -> int:
        """The lowest index at which a stop string may have begun without being whole yet."""
        return read - max(self._matched)

    def _emit(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        if self._end is not None:
            self._end -= count
        return text

    def _stop(self) -> str:
        self.stopped = True
        text, self._held = self._held[: self._end], ""
        return text


def _borders(stop: str) -> list[int]:
    """Knuth, Morris, Pratt: for each prefix of `stop`, the length of its longest proper prefix that is its suffix too.

    "abab" -> [0, 0, 1, 2]
    """
    borders = [0]
    for character in stop[1:]:
        borders.append(_extend(stop, borders, borders[-1], character))
    return borders


def _extend(stop: str, borders: list[int], matched: int, character: str) -> int:
    """Length of the longest prefix of `stop` that the text ends with, after one more character; it was `matched`."""
    while matched and stop[matched] != character:
        matched = borders[matched - 1]
    return matched + (stop[matched] == character)
