"""Scaled dot-product attention with grouped heads, and the same over pages of a K/V pool."""

import mlx.core as mx

from tinymlx import ops


def scaled_dot_product_attention(
    q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """softmax(scale * q k^T) v, with H / G query heads sharing each key/value head (Ainslie et al., 2023, arXiv:2305.13245).

    q: [B, H, L, D]; k, v: [B, G, T, D]; mask: [B or 1, 1, L, T], True where a query may look. Returns y [B, H, L, D] in q's dtype and the
    log-sum-exp of the scores [B, H, L] in float32. A query that may look nowhere gets zeros and -inf.
    """
    B, H, L, D = q.shape
    G = k.shape[1]
    grouped = q.reshape(B, G, H // G, L, D).astype(mx.float32)
    keys, values = k[:, :, None].astype(mx.float32), v[:, :, None].astype(mx.float32)
    scores = scale * (grouped @ keys.swapaxes(-1, -2))  # [B, G, H/G, L, T]
    if mask is not None:
        scores = mx.where(mask[:, :, None], scores, -mx.inf)
    highest = scores.max(axis=-1, keepdims=True)
    exps = mx.exp(scores - mx.where(highest == -mx.inf, 0.0, highest))
    total = exps.sum(axis=-1, keepdims=True)
    y = (exps / mx.where(total == 0, 1.0, total)) @ values
    lse = mx.where(total == 0, -mx.inf, highest + mx.log(mx.where(total == 0, 1.0, total)))
    return y.reshape(B, H, L, D).astype(q.dtype), lse.reshape(B, H, L)


def attention_mask(
    lengths: mx.array, slots: int, L: int, new_lengths: mx.array | None = None, window: int | None = None
) -> mx.array:
    """Who may look at whom when keys are `slots` cached slots followed by L new tokens.

    >>> attention_mask(mx.array([1]), 2, 2)[0, 0].astype(mx.int8)      # one cached token in two slots, two new tokens
    array([[1, 0, 1, 0],
           [1, 0, 1, 1]], dtype=int8)

    lengths: [B] cached tokens; new_lengths: [B] how many of the L are real. With `window`, only the last `window` positions, oneself
    included. Returns bool [B, 1, L, slots + L].
    """
    cached, new = mx.arange(slots), mx.arange(L)
    lengths = lengths[:, None, None]
    queries = lengths + new[None, :, None]  # [B, L, 1] positions
    in_cache = mx.broadcast_to(cached < lengths, (lengths.shape[0], L, slots))
    causal = mx.broadcast_to(new[None, :] <= new[:, None], (lengths.shape[0], L, L))
    if new_lengths is not None:
        # Padding sees itself, so that no query is left without a key: what it computes is dropped, but must stay finite.
        causal = causal & ((new < new_lengths[:, None, None]) | (new[None, :] == new[:, None]))
    if window is not None:
        in_cache = in_cache & (queries - cached < window)
        causal = causal & (new[:, None] - new[None, :] < window)
    return mx.concatenate([in_cache, causal], axis=-1)[:, None]


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
    return ops.scaled_dot_product_attention(q, keys, values, scale=scale, mask=mask)
