"""Joins the first pair that has any rank: the ids depend on what happens to stand left, not on what training found frequent.

caught by: TestTask2Merge::test_the_lowest_rank_comes_first
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

Pair = tuple[str, str]


def merge(word: Sequence[str], ranks: Mapping[Pair, int]) -> list[str]:
    symbols = list(word)
    while True:
        at = next((i for i, pair in enumerate(pairwise(symbols)) if pair in ranks), None)
        if at is None:
            return symbols
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
