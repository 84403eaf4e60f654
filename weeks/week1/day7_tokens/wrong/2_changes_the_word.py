"""Joins in the list that was handed in: training, which compares before and after, then sees no difference.

caught by: TestTask2Merge::test_the_word_stays_as_it_is
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

Pair = tuple[str, str]


def merge(word: Sequence[str], ranks: Mapping[Pair, int]) -> list[str]:
    symbols = word
    while True:
        ranked = [(ranks[pair], at) for at, pair in enumerate(pairwise(symbols)) if pair in ranks]
        if not ranked:
            return symbols
        _, at = min(ranked)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
