"""Looks up what a pair spells instead of the pair: "a" + "bc" is joined by the merge of "ab" + "c".

caught by: TestTask2Merge::test_it_is_the_pair_that_has_a_rank
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

Pair = tuple[str, str]


def merge(word: Sequence[str], ranks: Mapping[Pair, int]) -> list[str]:
    by_text = {left + right: rank for (left, right), rank in ranks.items()}
    symbols = list(word)
    while True:
        ranked = [(by_text[a + b], at) for at, (a, b) in enumerate(pairwise(symbols)) if a + b in by_text]
        if not ranked:
            return symbols
        _, at = min(ranked)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
