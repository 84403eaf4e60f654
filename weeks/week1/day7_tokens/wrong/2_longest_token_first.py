"""Cuts off the longest known token, again and again: that is WordPiece, and other ids.

caught by: TestTask2Merge::test_the_lowest_rank_comes_first
"""

from collections.abc import Mapping, Sequence

Pair = tuple[str, str]


def merge(word: Sequence[str], ranks: Mapping[Pair, int]) -> list[str]:
    known = {left + right for left, right in ranks}
    symbols, at = [], 0
    while at < len(word):
        stop = next((stop for stop in range(len(word), at + 1, -1) if "".join(word[at:stop]) in known), at + 1)
        symbols.append("".join(word[at:stop]))
        at = stop
    return symbols
