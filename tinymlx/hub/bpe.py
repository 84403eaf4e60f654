"""Byte-level byte-pair encoding, written to be read: the ids that the `tokenizers` library gives, only more slowly.

    text -> split_special -> normalizer -> pre-tokenizer -> words of byte characters -> merge -> token ids

`load_tokenizer(source, readable=True)` encodes with it. Sources: Sennrich et al. 2016 (arXiv:1508.07909), GPT-2.
"""

import heapq
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise

import tokenizers

from tinymlx.errors import UserError
from tinymlx.hub.vocabulary import TokenizersVocabulary

Pair = tuple[str, str]
_RARE = "dropout unk_token continuing_subword_prefix end_of_word_suffix lstrip rstrip single_word".split()


@cache
def byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: the 256 characters that stand for bytes in a byte-level vocabulary, "Ġ" -> 0x20.

    Bytes that Latin-1 prints stand for themselves, the others, in order, for U+0100 and up (Radford et al. 2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if chr(byte) not in alphabet)
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


def merge(word: Sequence[str], ranks: Mapping[Pair, int]) -> list[str]:
    """Joins neighbours for as long as a pair of them has a rank: the lowest rank first, of equal pairs the leftmost.

    >>> merge(["l", "o", "w", "e", "r"], {("e", "r"): 0, ("l", "o"): 1, ("lo", "w"): 2})
    ['low', 'er']

    Quadratic in the word's length; words are short.
    """
    symbols = list(word)
    while True:
        ranked = [(ranks[pair], at) for at, pair in enumerate(pairwise(symbols)) if pair in ranks]
        if not ranked:
            return symbols
        _, at = min(ranked)
        symbols[at : at + 2] = ["".join(symbols[at : at + 2])]


def train(words: Mapping[str, int], size: int) -> tuple[list[Pair], dict[str, int]]:
    """Learns merges until the vocabulary has `size` tokens or no word has a pair left. Returns merges and token -> id.

    >>> merges, vocabulary = train({"low": 5, "lower": 2, "newest": 6}, size=258)
    >>> merges, vocabulary["lo"]
    ([('w', 'e'), ('l', 'o')], 257)

    words: how often each word of byte characters occurs. The vocabulary begins with the 256 byte characters in order of
    code point. Each step takes the pair that occurs most often within words, of equals the lowest (left id, right id).
    """
    ids = {token: index for index, token in enumerate(sorted(byte_of_character()))}
    spelled = [(list(word), count) for word, count in words.items()]
    counts, where = Counter(), defaultdict(set)  # how often each pair occurs, and in which words
    for index, (symbols, count) in enumerate(spelled):
        for pair in pairwise(symbols):
            counts[pair] += count
            where[pair].add(index)
    merges, queue = [], [(-count, ids[pair[0]], ids[pair[1]], pair) for pair, count in counts.items()]
    heapq.heapify(queue)
    while queue and len(ids) < size:
        negative, left, right, pair = heapq.heappop(queue)
        if counts[pair] != -negative:  # it lost occurrences since it was put in; only pairs with a new token gain any
            if counts[pair]:
                heapq.heappush(queue, (-counts[pair], left, right, pair))
            continue
        token = "".join(pair)
        merges.append(pair)
        ids[token] = len(ids)
        fresh = set()
        for index in where.pop(pair):  # not all words: most have no such pair
            symbols, count = spelled[index]
            merged = merge(symbols, {pair: 0})
            spelled[index] = merged, count
            for old in pairwise(symbols):
                counts[old] -= count
            for new in pairwise(merged):
                counts[new] += count
                if token in new:
                    where[new].add(index)
                    fresh.add(new)
        for new in fresh:
            heapq.heappush(queue, (-counts[new], ids[new[0]], ids[new[1]], new))
    return merges, ids


def split_special(text: str, special: Iterable[str]) -> list[tuple[str, bool]]:
    """Cuts a text at special tokens: its parts in order, none of them empty, each with whether it is a special token.

    >>> split_special("Hi<|end|>\\n", {"<|end|>", "<|end|>\\n"})
    [('Hi', False), ('<|end|>\\n', True)]

    Of tokens that overlap the one that starts first counts, of those that start together the longest.
    """
    longest_first = map(re.escape, sorted(special, key=len, reverse=True))
    pattern = "|".join(longest_first) or "(?!)"  # which matches nowhere
    parts = re.split(f"({pattern})", text)  # text, token, text, token, ..., text
    return [(part, index % 2 == 1) for index, part in enumerate(parts) if part]


class BytePairVocabulary(TokenizersVocabulary):
    """A byte-level BPE vocabulary of the `tokenizers` library, encoded by the functions above."""

    def __init__(self, backend: tokenizers.Tokenizer, origin: str):
        """Raises UserError for anything but byte-level BPE, and for its rare settings that are not followed here."""
        super().__init__(backend, origin)
        state, added = json.loads(backend.to_str()), backend.get_added_tokens_decoder()
        model, self._ids = state["model"], backend.get_vocab(with_added_tokens=False)
        if model["type"] != "BPE" or not self._byte_level or '"ByteLevel"' not in json.dumps(state["pre_tokenizer"]):
            raise UserError(f"{origin}: only byte-level BPE (Qwen, Llama 3, SmolLM2) can be encoded step by step")
        rare = [name for name in _RARE if model.get(name) or any(getattr(t, name, False) for t in added.values())]
        if rare:
            raise UserError(f"{origin}: a tokenizer with {', '.join(rare)} cannot be encoded step by step")
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
        self._whole_words = model["ignore_merges"]
        self._normalize = backend.normalizer.normalize_str if backend.normalizer else str
        self._special = {t.content: index for index, t in added.items() if not t.normalized}
        self._normalized = {self._normalize(t.content): index for index, t in added.items() if t.normalized}
        around = backend.encode("a", add_special_tokens=True)  # its mask says what was put around the text
        first, last = (mask.index(0) for mask in (around.special_tokens_mask, around.special_tokens_mask[::-1]))
        self._before, self._after = around.ids[:first], around.ids[len(around.ids) - last :]

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        tokens = []
        for part, is_special in split_special(text, self._special):
            tokens += [self._special[part]] if is_special else self._encode_part(self._normalize(part))
        return [*self._before, *tokens, *self._after] if add_special_tokens else tokens

    def _encode_part(self, text: str) -> Iterator[int]:
        for part, is_special in split_special(text, self._normalized):
            if is_special:
                yield self._normalized[part]
            for word, _ in [] if is_special else self.backend.pre_tokenizer.pre_tokenize_str(part):
                whole = self._whole_words and word in self._ids
                # A vocabulary may lack some bytes; the library drops those.
                symbols = [word] if whole else merge([c for c in word if c in self._ids], self._ranks)
                yield from (self._ids[symbol] for symbol in symbols)
