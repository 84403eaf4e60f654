"""Norms with the weight of the block's first norm.

caught by: TestTask2MlpBlock::test_against_float64
"""

import mlx.core as mx

from tinymlx import kernels
from tinymlx.models.qwen3 import Layer, Qwen3


def mlp_block(model: Qwen3, layer: Layer, x: mx.array) -> mx.array:
    eps = model.config.rms_norm_eps
    y = kernels.norm_gate_up(x, layer.input_layernorm, eps, layer.gate_proj, layer.up_proj)
    return kernels.linear_residual(x, y, layer.down_proj)
