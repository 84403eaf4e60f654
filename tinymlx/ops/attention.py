"""Attention step by step: softmax, one head, grouped heads, masks, and the same over pages of a K/V pool."""

import mlx.core as mx

from tinymlx import ops


def softmax(scores: mx.array) -> tuple[mx.array, mx.array]:
    """Scores to weights that sum to 1 along the last axis, and the logarithm of what they were divided by.

    >>> softmax(mx.log(mx.array([1.0, 3.0])))
    (array([0.25, 0.75], dtype=float32), array(1.38629, dtype=float32))

    scores: [..., T] float32. Returns [..., T] and the log-sum-exp [...]. A row of nothing but -inf gives zeros and -inf.
    """
    highest = scores.max(axis=-1, keepdims=True)
    highest = mx.where(highest == -mx.inf, 0.0, highest)  # -inf - -inf would be NaN
    exps = mx.exp(scores - highest)  # at most 1: exp(89) is more than float32 holds
    total = exps.sum(axis=-1, keepdims=True)
    return exps / mx.where(total == 0, 1.0, total), (highest + mx.log(total)).squeeze(-1)


def attention_scores(q: mx.array, k: mx.array, *, scale: float, mask: mx.array | None = None) -> mx.array:
    """How well each query fits each key: scale * q k^T, and -inf where `mask` is False.

    q: [..., L, D]; k: [..., T, D]; mask: bool, broadcast to [..., L, T]. Returns [..., L, T] float32; leading axes broadcast.
    """
    scores = scale * (q.astype(mx.float32) @ k.astype(mx.float32).swapaxes(-1, -2))
    return scores if mask is None else mx.where(mask, scores, -mx.inf)


def scaled_dot_product_attention(
    q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """softmax(scale * q k^T) v (Vaswani et al., 2017, arXiv:1706.03762, section 3.2.1).

    q: [..., L, D]; k, v: [..., T, D]; mask: bool, broadcast to [..., L, T], True where a query may look; leading axes broadcast. Returns
    y [..., L, D] in q's dtype and the log-sum-exp of the scores [..., L] in float32. A query that may look nowhere gets zeros and -inf.
    """
    weights, lse = ops.softmax(ops.attention_scores(q, k, scale=scale, mask=mask))
    return (weights @ v.astype(mx.float32)).astype(q.dtype), lse


def grouped_query_attention(
    q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """Attention with H / G query heads sharing each key/value head (Ainslie et al., 2023, arXiv:2305.13245): head h reads h // (H / G).

    q: [B, H, L, D]; k, v: [B, G, T, D]; mask: [B or 1, 1, L, T]. Returns y [B, H, L, D] and the log-sum-exp [B, H, L]. Keys and values are
    not repeated: the queries get an axis for their group, and the group's one key head is broadcast along it.
    """
    B, H, L, D = q.shape
    G = k.shape[1]
    grouped = q.reshape(B, G, H // G, L, D)
    mask = None if mask is None else mask[:, :, None]
    y, lse = ops.scaled_dot_product_attention(grouped, k[:, :, None], v[:, :, None], scale=scale, mask=mask)
    return y.reshape(B, H, L, D), lse.reshape(B, H, L)


def causal_mask(queries: mx.array, keys: mx.array, window: int | None = None) -> mx.array:
    """Who may look at whom by position: at itself and before, and with `window` only at the last `window` positions, itself included.

    >>> causal_mask(mx.array([[2, 3]]), mx.array([[0, 1, 2, 3]]), window=3)[0, 0].astype(mx.int8)
    array([[1, 1, 1, 0],
           [0, 1, 1, 1]], dtype=int8)

    queries: [B, L], keys: [B, T] integer positions. Returns bool [B, 1, L, T].
    """
    distance = queries[:, None, :, None] - keys[:, None, None, :]
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def attention_mask(lengths: mx.array, slots: int, L: int, window: int | None = None) -> mx.array:
    """The causal mask when keys are `slots` cached slots, of which the first lengths[b] are filled, followed by L new tokens.

    >>> attention_mask(mx.array([1]), 2, 2)[0, 0].astype(mx.int8)      # one cached token in two slots, two new tokens
    array([[1, 0, 1, 0],
           [1, 0, 1, 1]], dtype=int8)

    lengths: [B]. Returns bool [B, 1, L, slots + L]. Rows shorter than L are padded at their end, where no real query looks.
    """
    new = lengths[:, None] + mx.arange(L)  # [B, L] positions
    cached = mx.broadcast_to(mx.arange(slots), (lengths.shape[0], slots))
    mask = ops.causal_mask(new, mx.concatenate([cached, new], axis=1), window)
    filled = mx.concatenate([cached < lengths[:, None], mx.ones(new.shape, mx.bool_)], axis=1)
    return mask & filled[:, None, None]


def gather_pages(pool: mx.array, pages: mx.array, heads: mx.array) -> mx.array:
    """Lay a row's pages side by side.

    pool: [P, G, page, D]; pages: [B, M] ids into P; heads: 0, 1, ..., G - 1. Returns [B, G, M * page, D].
    """
    _, G, page, D = pool.shape
    B, M = pages.shape
    return pool[pages[:, None, :], heads[None, :, None]].reshape(B, G, M * page, D)


def paged_attention(
    q: mx.array, k_new: mx.array, v_new: mx.array, k_pages: mx.array, v_pages: mx.array, mask: mx.array, *, scale: float
) -> tuple[mx.array, mx.array]:
    """Attention over gathered pages followed by the new tokens, which are not in the pool yet.

    q: [B, H, L, D]; k_new, v_new: [B, G, L, D]; k_pages, v_pages: [B, G, slots, D]; mask: [B, 1, L, slots + L]. Returns y, lse.
    """
    keys = mx.concatenate([k_pages, k_new], axis=2)
    values = mx.concatenate([v_pages, v_new], axis=2)
    visible = mask.any(axis=2)[..., None]  # [B, 1, slots + L, 1]
    values = mx.where(visible, values, 0)  # a slot nobody may see can hold NaN, and 0 * NaN is NaN
    return ops.grouped_query_attention(q, keys, values, scale=scale, mask=mask)
