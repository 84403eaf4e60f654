"""The halves of a block in the other order.

caught by: TestTask3Forward::test_against_float64
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
        mlp = qwen3.mlp_block if layer.router is None else qwen3.experts_block
        x = mlp(model, layer, x)
        x, k, v = qwen3.attention_block(model, layer, x, layer_kv)
        fresh.append((k, v))
    return x, fresh
