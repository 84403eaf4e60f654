"""Day 1.7: tokens in and out. Each function here replaces the product's function of the same name; the chapter is README.md beside it.

tinymlx learn check 1.7 --watch          grades this file whenever you save it
tinymlx learn run 1.7 --prompt "Hi"      answers with your functions inside the engine
"""

from collections.abc import Iterable, Mapping, Sequence

import mlx.core as mx

from tinymlx.hub import bpe  # the product's: bpe.merge is yours as soon as yours is graded or run

HOMES = {
    "byte_of_character": "tinymlx.hub.bpe",
    "merge": "tinymlx.hub.bpe",
    "train": "tinymlx.hub.bpe",
    "split_special": "tinymlx.hub.bpe",
    "keep_top_p": "tinymlx.engine.sampling",
    "pick": "tinymlx.engine.sampling",
}

Pair = tuple[str, str]


def byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: the 256 characters that stand for bytes in a byte-level vocabulary, "Ġ" -> 0x20.

    Bytes that Latin-1 prints (0x21 to 0x7E, 0xA1 to 0xAC, 0xAE to 0xFF) stand for themselves; the others, in order, for U+0100 and up.
    """
    raise NotImplementedError("1.7 task 1: a character for every byte")


def merge(word: Sequence[str], ranks: Mapping[Pair, int]) -> list[str]:
    """Joins neighbours for as long as a pair of them has a rank: the lowest rank first, of equal pairs the leftmost.

    >>> merge(["l", "o", "w", "e", "r"], {("e", "r"): 0, ("l", "o"): 1, ("lo", "w"): 2})
    ['low', 'er']

    word: the symbols, left as they are; the result is a new list.
    """
    raise NotImplementedError("1.7 task 2: symbols joined by rank")


def train(words: Mapping[str, int], size: int) -> tuple[list[Pair], dict[str, int]]:
    """Learns merges until the vocabulary has `size` tokens or no word has a pair left. Returns merges and token -> id.

    >>> merges, vocabulary = train({"low": 5, "lower": 2, "newest": 6}, size=258)
    >>> merges, vocabulary["lo"]
    ([('w', 'e'), ('l', 'o')], 257)

    words: how often each word of byte characters occurs, 1 or more. The vocabulary begins with all 256 byte characters in order of code
    point. Each step takes the pair of neighbours that occurs most often within words ("aaa" has two), of equals the one whose
    (left id, right id) is lowest.
    """
    raise NotImplementedError("1.7 task 3: merges learned from counts")


def split_special(text: str, special: Iterable[str]) -> list[tuple[str, bool]]:
    """Cuts a text at special tokens: its parts in order, none of them empty, each with whether it is a special token.

    >>> split_special("Hi<|end|>\\n", {"<|end|>", "<|end|>\\n"})
    [('Hi', False), ('<|end|>\\n', True)]

    Of tokens that overlap the one that starts first counts, of those that start together the longest.
    """
    raise NotImplementedError("1.7 task 4: text cut at special tokens")


def keep_top_p(weights: mx.array, top_p: mx.array) -> mx.array:
    """Zeroes what lies behind the smallest set of a row's largest weights that reaches `top_p` of the row's sum.

    >>> keep_top_p(mx.array([[5.0, 3, 1, 1]]), mx.array([[0.6]]))
    array([[5, 3, 0, 0]], dtype=float32)

    weights: [R, N] float32 >= 0, each row's largest first, not scaled to any sum; N is at most 128 or a multiple of it. top_p: [R, 1],
    infinite to keep all. The first of a row always stays. Returns [R, N]; what stays is as it was.
    """
    raise NotImplementedError("1.7 task 5: the tail zeroed")


def pick(weights: mx.array, u: mx.array) -> mx.array:
    """Draws an index from each row with probability weight / sum: weights [R, N] >= 0, u [R, 2] in (0, 1) -> [R].

    >>> pick(mx.array([[1.0, 0, 3], [1.0, 0, 3]]), mx.array([[0.2, 0.2], [0.9, 0.9]]))
    array([0, 2], dtype=uint32)

    The two numbers of a row are independent and uniform; how an index comes from them is yours to choose, as long as its distribution is
    right. An index of weight 0 is never drawn. N is at most 128 or a multiple of it. In a row as wide as a vocabulary the index lies
    where the running sum reaches u[:, 0] of the whole, give or take 5 % of the row (an inverse CDF).
    """
    raise NotImplementedError("1.7 task 6: an index drawn")
