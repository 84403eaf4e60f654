"""Passes the weight alone: models with biases lose them.

caught by: TestTask2MlpBlock::test_biases
"""

import mlx.core as mx

from tinymlx import kernels
from tinymlx.models.qwen3 import Layer, Qwen3
from tinymlx.ops.linear import Linear


def mlp_block(model: Qwen3, layer: Layer, x: mx.array) -> mx.array:
    eps = model.config.rms_norm_eps
    y = kernels.norm_gate_up(x, layer.post_attention_layernorm, eps, Linear(layer.gate_proj.weight), layer.up_proj)
    return kernels.linear_residual(x, y, layer.down_proj)
