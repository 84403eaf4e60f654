"""The feed-forward half of a block: SwiGLU (Shazeer, 2020, arXiv:2002.05202), alone or as experts behind a router."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.ops.linear import Linear


def silu(x: mx.array) -> mx.array:
    """x * sigmoid(x), any shape."""
    return x * mx.sigmoid(x)


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """silu(gate) * up, both [..., N]."""
    return ops.silu(gate) * up


def mixture_of_experts(
    x: mx.array, router: Linear, gate: Linear, up: Linear, down: Linear, *, top_k: int, normalize: bool
) -> mx.array:
    """Each token's `top_k` most probable experts, weighted by the router's softmax (over all experts).

    x: [B, L, K]; router: [E, K]; gate, up: [E, N, K]; down: [E, K, N]. Returns [B, L, K]. `normalize` makes the chosen weights sum to 1.
    Every expert sees every token here, and the weights of those not chosen are zero: slow and plain.
    """
    probabilities = mx.softmax(ops.linear(x, router).astype(mx.float32), axis=-1)  # [B, L, E]
    chosen = mx.stop_gradient(mx.argpartition(-probabilities, kth=top_k - 1, axis=-1)[..., :top_k])
    kept = mx.put_along_axis(mx.zeros_like(probabilities), chosen, mx.take_along_axis(probabilities, chosen, -1), -1)
    if normalize:
        kept = kept / kept.sum(axis=-1, keepdims=True)
    experts = x[..., None, None, :]  # [B, L, 1, 1, K] against [E, N, K]
    hidden = ops.swiglu(ops.linear(experts, gate), ops.linear(experts, up))
    outputs = ops.linear(hidden, down)[..., 0, :]  # [B, L, E, K]
    return (outputs * kept[..., None]).sum(axis=-2).astype(x.dtype)
