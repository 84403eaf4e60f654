"""Counts what one pass can join: "aaa" then holds ("a", "a") once, and the library counts it twice.

caught by: TestTask3Train::test_pairs_that_overlap_count
"""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from tinymlx.hub import bpe

Pair = tuple[str, str]


def disjoint(symbols: list[str]) -> list[Pair]:
    found, free = [], 0
    for at, pair in enumerate(pairwise(symbols)):
        if pair[0] == pair[1] and at < free:
            continue
        found.append(pair)
        free = at + 2
    return found


def train(words: Mapping[str, int], size: int) -> tuple[list[Pair], dict[str, int]]:
    ids = {token: index for index, token in enumerate(sorted(bpe.byte_of_character()))}
    spelled = [(list(word), count) for word, count in words.items()]
    merges = []
    while len(ids) < size:
        counts = Counter()
        for symbols, count in spelled:
            for pair in disjoint(symbols):
                counts[pair] += count
        if not counts:
            break
        best = max(counts, key=lambda pair: (counts[pair], -ids[pair[0]], -ids[pair[1]]))
        merges.append(best)
        ids["".join(best)] = len(ids)
        spelled = [(bpe.merge(symbols, {best: 0}), count) for symbols, count in spelled]
    return merges, ids
