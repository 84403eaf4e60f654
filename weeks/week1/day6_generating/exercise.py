"""Day 1.6: generating. Each function here replaces the product's function of the same name; the chapter is README.md beside it.

tinymlx learn check 1.6 --watch          grades this file whenever you save it
tinymlx learn run 1.6 --prompt "Hi"      answers with your functions inside the engine
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import mlx.core as mx
import numpy as np

from tinymlx import ops  # the product's: ops.grouped_query_attention is the one of day 1.3

Draw = TypeVar("Draw")

HOMES = {
    "page_slots": "tinymlx.cache.pool",
    "gather_pages": "tinymlx.ops",
    "paged_attention": "tinymlx.ops",
    "prefill": "tinymlx.engine.loop",
    "decode": "tinymlx.engine.loop",
}


def page_slots(table: Sequence[int], start: int, count: int, page_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Where a row's positions start, start + 1, ... lie: each one's page and its slot in that page, [count] each.

    >>> page_slots([7, 3], 1, 4, page_size=4)      # positions 1 to 4 of a row whose pages are 7 and 3
    (array([7, 7, 7, 3]), array([1, 2, 3, 0]))

    table: the row's pages in the order of its positions, numbers in no order of their own; it has enough of them. count may be 0. Both
    results are NumPy arrays of integers, also then.
    """
    raise NotImplementedError("1.6 task 1: from positions to pages and slots")


def gather_pages(pool: mx.array, pages: mx.array, heads: mx.array) -> mx.array:
    """Lay a row's pages side by side.

    pool: [P, G, page, D]; pages: [B, M] ids into P, in the order of the row's positions, repeated where a short row is padded; heads: 0, 1, ...,
    G - 1, made once a step by the caller for whoever wants them as an index. Returns [B, G, M * page, D] in the pool's dtype: in row b, slot
    m * page + i of head g is pool[pages[b, m], g, i].
    """
    raise NotImplementedError("1.6 task 2: scattered pages side by side")


def paged_attention(
    q: mx.array, k_new: mx.array, v_new: mx.array, k_pages: mx.array, v_pages: mx.array, mask: mx.array, *, scale: float
) -> tuple[mx.array, mx.array]:
    """Attention over gathered pages followed by the new tokens, which are not in the pool yet.

    q: [B, H, L, D]; k_new, v_new: [B, G, L, D]; k_pages, v_pages: [B, G, slots, D]; mask: [B, 1, L, slots + L], True where a query may look. Returns
    what ops.grouped_query_attention does: y [B, H, L, D] in q's dtype and the log-sum-exp [B, H, L] in float32. A slot that no query of
    its row may see can hold anything, NaN and infinity too, and changes nothing; a NaN that a query may see is not hidden.
    """
    raise NotImplementedError("1.6 task 3: attention over the cache and the new tokens")


def prefill(
    feed: Callable[[Sequence[int], bool], mx.array], prompt: Sequence[int], start: int, step_size: int
) -> mx.array:
    """Feed prompt[start:] in chunks of `step_size` tokens, the last of what is left, so that memory for activations stays bounded.

    >>> prefill(lambda chunk, last: print(chunk, last), [5, 6, 7, 8, 9], start=1, step_size=3)
    [6, 7, 8] False
    [9] True

    feed(chunk, last): runs the model over the next tokens and caches their K/V; logits are wanted of the last chunk alone. Returns what it
    gave for that: logits [1, V] after the prompt's last token. start: how many tokens are cached already, below len(prompt).
    """
    raise NotImplementedError("1.6 task 4: the prompt, chunk by chunk")


def decode(advance: Callable[[Draw], Draw], draw: Draw, limit: int, ahead: Callable[[], bool]) -> Iterator[Draw]:
    """Hand out `draw` and those that follow it, `limit` in all (1 or more). Who finds an end token stops asking, and no more is computed.

    >>> list(decode(lambda draw: draw + 1, 10, 3, lambda: True))
    [10, 11, 12]

    advance(draw): feeds the drawn token to the model and draws the next, without waiting for either: call it once for each draw that has a
    successor, and look into no draw. ahead(): asked anew for each token, whether the next step may be enqueued before this token is handed
    out. Then the device never waits for whoever reads the tokens, and at most one step is computed in vain.
    """
    raise NotImplementedError("1.6 task 5: one token after the other")
