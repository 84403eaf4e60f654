"""Of equal pairs the last one: "aaa" becomes "a", "aa".

caught by: TestTask2Merge::test_the_leftmost_of_equals_comes_first
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

Pair = tuple[str, str]


def merge(word: Sequence[str], ranks: Mapping[Pair, int]) -> list[str]:
    symbols = list(word)
    while True:
        ranked = [(ranks[pair], -at) for at, pair in enumerate(pairwise(symbols)) if pair in ranks]
        if not ranked:
            return symbols
        at = -min(ranked)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
