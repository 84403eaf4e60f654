"""The alphabet of the training text only: whatever byte it lacked cannot be encoded later.

caught by: TestTask3Train::test_where_it_begins_and_ends
"""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from tinymlx.hub import bpe

Pair = tuple[str, str]


def train(words: Mapping[str, int], size: int) -> tuple[list[Pair], dict[str, int]]:
    ids = {token: index for index, token in enumerate(sorted(set("".join(words))))}
    spelled = [(list(word), count) for word, count in words.items()]
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
