"""attend: new queries over the pages of the cache and over the new keys and values, which are not in the pool yet."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.cache import KVView
from tinymlx.kernels import cpu
from tinymlx.kernels.gradient import refusing
from tinymlx.kernels.route import Operation, Route


def _mask(kv: KVView, L: int, window: int | None) -> mx.array:
    return kv.once(("mask", L, window), lambda: ops.attention_mask(kv.lengths, kv.num_slots, L, window))


def _gather(kv: KVView) -> tuple[mx.array, mx.array]:
    """This layer's cached keys and values, each [B, G, slots, D]."""
    heads = kv.once("heads", lambda: mx.arange(kv.pool.shape[1]))
    keys, values = kv.pages()
    return ops.gather_pages(kv.pool, keys, heads), ops.gather_pages(kv.pool, values, heads)


def twin(
    q: mx.array,
    k_new: mx.array,
    v_new: mx.array,
    kv: KVView,
    *,
    scale: float,
    window: int | None = None,
    want_lse: bool = False,
) -> tuple[mx.array, mx.array | None]:
    """q: [B, H, L, D]; k_new, v_new: [B, G, L, D]; causal, and within `window` positions if given.

    Returns y [B, H, L, D] and, when `want_lse`, the log-sum-exp [B, H, L] in float32 (else it may be None).
    """
    mask = _mask(kv, q.shape[2], window)
    if kv.is_empty:
        return ops.grouped_query_attention(q, k_new, v_new, scale=scale, mask=mask)
    return ops.paged_attention(q, k_new, v_new, *_gather(kv), mask, scale=scale)


def mlx(q, k_new, v_new, kv, *, scale, window=None, want_lse=False):
    if kv.is_empty and window is None:
        return mx.fast.scaled_dot_product_attention(q, k_new, v_new, scale=scale, mask="causal"), None
    keys, values = k_new, v_new
    if not kv.is_empty:
        k_pages, v_pages = _gather(kv)
        keys, values = mx.concatenate([k_pages, k_new], axis=2), mx.concatenate([v_pages, v_new], axis=2)
    return mx.fast.scaled_dot_product_attention(q, keys, values, scale=scale, mask=_mask(kv, q.shape[2], window)), None


def host(q, k_new, v_new, kv, *, scale, window=None, want_lse=False):
    run = lambda: cpu.attend(q, k_new, v_new, kv, scale=scale, window=window)  # noqa: E731
    return refusing(run, "attention on a CPU", [q, k_new, v_new]), None


def _host_takes(q, k_new, v_new, kv, *, scale, window=None, want_lse=False) -> bool:
    return not want_lse and q.size > 0 and cpu.takes_attention(q, k_new, v_new, kv.pool)


def _without_lse(*args, want_lse: bool = False, **kwargs) -> bool:
    return not want_lse


attend = Operation(
    "attend",
    covers=(
        "softmax",
        "attention_scores",
        "scaled_dot_product_attention",
        "grouped_query_attention",
        "causal_mask",
        "attention_mask",
        "gather_pages",
        "paged_attention",
    ),
    routes={"twin": Route(twin), "mlx": Route(mlx, applies=_without_lse), "host": Route(host, applies=_host_takes)},
)
