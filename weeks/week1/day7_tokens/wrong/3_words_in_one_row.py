"""Lays the words end to end: pairs then cross their borders, and tokens begin in the middle of words.

caught by: TestTask3Train::test_words_do_not_touch
"""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from tinymlx.hub import bpe

Pair = tuple[str, str]


def train(words: Mapping[str, int], size: int) -> tuple[list[Pair], dict[str, int]]:
    ids = {token: index for index, token in enumerate(sorted(bpe.byte_of_character()))}
    spelled = [([c for word, count in words.items() for c in word * count], 1)]
    merges = []
    while len(ids) < size:
        counts = Counter()
        for symbols, count in spelled:
            for pair in pairwise(symbols):
                counts[pair] += count
        if not counts:
            break
        best = max(counts, key=lambda pair: (counts[pair], -ids[pair[0]], -ids[pair[1]]))
        merges.append(best)
        ids["".join(best)] = len(ids)
        spelled = [(bpe.merge(symbols, {best: 0}), count) for symbols, count in spelled]
    return merges, ids
