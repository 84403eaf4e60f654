"""norm_experts: the block's second norm and a mixture of experts (Qwen3-MoE)."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.kernels import linear_mlx
from tinymlx.kernels.route import Operation, Route
from tinymlx.ops.linear import Linear

# From so many token-expert pairs on, sorting them by expert lets MLX read each expert's weights once.
PAIRS_WORTH_SORTING = 64


def twin(
    x: mx.array,
    weight: mx.array,
    eps: float,
    router: Linear,
    gate: Linear,
    up: Linear,
    down: Linear,
    *,
    top_k: int,
    normalize: bool,
) -> mx.array:
    """x: [B, L, K]; router: [E, K]; gate, up: [E, N, K]; down: [E, K, N]. Returns [B, L, K], without the residual."""
    normed = ops.rms_norm(x, weight, eps)
    return ops.mixture_of_experts(normed, router, gate, up, down, top_k=top_k, normalize=normalize)


def _gathered(x: mx.array, w: Linear, experts: mx.array, in_order: bool) -> mx.array:
    """x: [..., 1, K] with each row's expert in `experts` -> [..., 1, N]."""

    def times(x: mx.array, weight: mx.array) -> mx.array:
        return mx.gather_mm(x, weight.swapaxes(-1, -2), rhs_indices=experts, sorted_indices=in_order)

    if w.quantization is None:
        y = times(x, w.weight)
    else:
        group_size, bits, mode = w.quantization
        y = mx.gather_qmm(
            x, w.weight, w.scales, w.biases, rhs_indices=experts, transpose=True, group_size=group_size, bits=bits, mode=mode,
            sorted_indices=in_order,
        ).astype(x.dtype)  # fmt: skip
    return y if w.lora is None else y + (w.lora.scale * times(times(x, w.lora.a), w.lora.b)).astype(x.dtype)


def mlx(x, weight, eps, router, gate, up, down, *, top_k, normalize):
    normed = mx.fast.rms_norm(x, weight, eps)
    probabilities = mx.softmax(linear_mlx.linear(normed, router), axis=-1, precise=True)
    chosen = mx.stop_gradient(mx.argpartition(-probabilities, kth=top_k - 1, axis=-1)[..., :top_k])  # [B, L, top_k]
    shares = mx.take_along_axis(probabilities, chosen, axis=-1)
    if normalize:
        shares = shares / shares.sum(axis=-1, keepdims=True)
    pairs = chosen.size
    tokens = normed.reshape(-1, 1, normed.shape[-1])  # [B * L, 1, K]
    in_order = pairs >= PAIRS_WORTH_SORTING
    experts = chosen.reshape(-1)
    order = mx.argsort(experts) if in_order else mx.arange(pairs)
    experts, rows = experts[order], tokens[order // top_k]  # [pairs], [pairs, 1, K]
    hidden = ops.swiglu(_gathered(rows, gate, experts, in_order), _gathered(rows, up, experts, in_order))
    outputs = _gathered(hidden, down, experts, in_order)[:, 0]  # [pairs, K]
    outputs = outputs[mx.argsort(order)].reshape(*chosen.shape, -1)
    return (outputs * shares[..., None]).sum(axis=-2).astype(x.dtype)


norm_experts = Operation(
    "norm_experts",
    covers=("rms_norm", "linear", "dequantize", "unpack", "swiglu", "silu", "mixture_of_experts"),
    routes={"twin": Route(twin), "mlx": Route(mlx)},
)
