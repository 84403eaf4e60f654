"""Adds to the normalised stream instead of the stream: shapes fit, and the residual is lost.

caught by: TestTask2MlpBlock::test_against_float64
"""

import mlx.core as mx

from tinymlx import kernels, ops
from tinymlx.models.qwen3 import Layer, Qwen3


def mlp_block(model: Qwen3, layer: Layer, x: mx.array) -> mx.array:
    eps = model.config.rms_norm_eps
    y = kernels.norm_gate_up(x, layer.post_attention_layernorm, eps, layer.gate_proj, layer.up_proj)
    normed = ops.rms_norm(x, layer.post_attention_layernorm, eps)
    return kernels.linear_residual(normed, y, layer.down_proj)
