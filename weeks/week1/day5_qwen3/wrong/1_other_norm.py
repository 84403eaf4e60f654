"""Norms with the weight of the block's second norm: same shape, other numbers.

caught by: TestTask1AttentionBlock::test_against_float64
"""

import mlx.core as mx

from tinymlx import kernels
from tinymlx.cache import KVView
from tinymlx.models.qwen3 import Layer, Qwen3


def attention_block(model: Qwen3, layer: Layer, x: mx.array, kv: KVView) -> tuple[mx.array, mx.array, mx.array]:
    rows, length, _ = x.shape
    config, eps = model.config, model.config.rms_norm_eps
    q, k, v = kernels.norm_qkv(x, layer.post_attention_layernorm, eps, layer.q_proj, layer.k_proj, layer.v_proj)
    q, k = kernels.qk_norm_rope(q, k, layer.q_norm, layer.k_norm, eps, kv.lengths, model.rope_periods, model.rope_scale)
    v = v.reshape(rows, length, config.num_key_value_heads, config.head_dim).swapaxes(1, 2)
    y, _ = kernels.attend(q, k, v, kv, scale=config.attention_scale, window=layer.window)
    return kernels.linear_residual(x, y.swapaxes(1, 2).reshape(rows, length, -1), layer.o_proj), k, v
