"""Day 1.3: grouped heads and masks. Each function here replaces the product's function of the same name; the chapter is README.md beside it.

tinymlx learn check 1.3 --watch          grades this file whenever you save it
tinymlx learn run 1.3 --prompt "Hi"      answers with your functions inside the engine
"""

import mlx.core as mx

from tinymlx import ops  # the product's: ops.causal_mask is yours as soon as yours is graded or run

HOMES = {
    "grouped_query_attention": "tinymlx.ops",
    "causal_mask": "tinymlx.ops",
    "attention_mask": "tinymlx.ops",
}


def grouped_query_attention(
    q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """Attention with H / G query heads sharing each key/value head (Ainslie et al., 2023, arXiv:2305.13245): head h reads h // (H / G).

    q: [B, H, L, D]; k, v: [B, G, T, D]; mask: [B or 1, 1, L, T]. Returns y [B, H, L, D] and the log-sum-exp [B, H, L]. Keys and values are
    not repeated in memory. ops.scaled_dot_product_attention (day 1.1) does the attention itself; its leading axes broadcast.
    """
    raise NotImplementedError("1.3 task 1: groups of query heads share a key head")


def causal_mask(queries: mx.array, keys: mx.array, window: int | None = None) -> mx.array:
    """Who may look at whom by position: at itself and before, and with `window` only at the last `window` positions, itself included.

    >>> causal_mask(mx.array([[2, 3]]), mx.array([[0, 1, 2, 3]]), window=3)[0, 0].astype(mx.int8)
    array([[1, 1, 1, 0],
           [0, 1, 1, 1]], dtype=int8)

    queries: [B, L], keys: [B, T] integer positions, in any order. Returns bool [B, 1, L, T]: True where the query may look.
    """
    raise NotImplementedError("1.3 task 2: the past, seen through a window")


def attention_mask(lengths: mx.array, slots: int, L: int, window: int | None = None) -> mx.array:
    """The causal mask when keys are `slots` cached slots, of which the first lengths[b] are filled, followed by L new tokens.

    >>> attention_mask(mx.array([1]), 2, 2)[0, 0].astype(mx.int8)      # one cached token in two slots, two new tokens
    array([[1, 0, 1, 0],
           [1, 0, 1, 1]], dtype=int8)

    lengths: [B] int32. Returns bool [B, 1, L, slots + L]. Row b's new tokens stand at positions lengths[b], lengths[b] + 1, ... Rows
    shorter than L are padded at their end, where no real query looks: they need nothing special.
    """
    raise NotImplementedError("1.3 task 3: cached slots, then new tokens")
