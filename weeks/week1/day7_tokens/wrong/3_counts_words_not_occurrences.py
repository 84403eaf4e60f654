"""Every word counts once: rare words shape the vocabulary as much as "the".

caught by: TestTask3Train::test_a_word_counts_as_often_as_it_occurs
"""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from tinymlx.hub import bpe

Pair = tuple[str, str]


def train(words: Mapping[str, int], size: int) -> tuple[list[Pair], dict[str, int]]:
    ids = {token: index for index, token in enumerate(sorted(bpe.byte_of_character()))}
    spelled = [(list(word), count) for word, count in words.items()]
    merges = []
    while len(ids) < size:
        counts = Counter()
        for symbols, count in spelled:
            for pair in pairwise(symbols):
                counts[pair] += 1
        if not counts:
            break
        best = max(counts, key=lambda pair: (counts[pair], -ids[pair[0]], -ids[pair[1]]))
        merges.append(best)
        ids["".join(best)] = len(ids)
        spelled = [(bpe.merge(symbols, {best: 0}), count) for symbols, count in spelled]
    return merges, ids
