"""Treats the experts' stacked weights as one MLP.

caught by: TestTask3Forward::test_a_layer_of_experts
"""

import mlx.core as mx

from tinymlx import kernels
from tinymlx.cache import KVView
from tinymlx.models import qwen3
from tinymlx.models.qwen3 import Qwen3


def forward(model: Qwen3, tokens: mx.array, kv: KVView) -> tuple[mx.array, list[tuple[mx.array, mx.array]]]:
    x = kernels.embed(tokens, model.embed_tokens, model.dtype)
    fresh = []
    for layer, layer_kv in zip(model.layers, kv.layers(len(model.layers))):
        x, k, v = qwen3.attention_block(model, layer, x, layer_kv)
        x = qwen3.mlp_block(model, layer, x)
        fresh.append((k, v))
    return x, fresh
