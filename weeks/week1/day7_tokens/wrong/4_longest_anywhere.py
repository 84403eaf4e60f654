"""Cuts at the longest token first, wherever it stands: one that starts earlier is torn apart.

caught by: TestTask4Special::test_the_first_of_those_that_overlap
"""

from collections.abc import Iterable


def split_special(text: str, special: Iterable[str]) -> list[tuple[str, bool]]:
    parts = [(text, False)]
    for token in sorted(special, key=len, reverse=True):
        cut = []
        for part, done in parts:
            pieces = [part] if done else part.split(token)
            for i, piece in enumerate(pieces):
                cut += [(token, True)] if i else []
                cut += [(piece, done)] if piece else []
        parts = cut
    return parts
