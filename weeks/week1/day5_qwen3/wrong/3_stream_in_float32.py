"""Embeds in float32 "for accuracy": every layer then computes and caches at twice the bytes.

caught by: TestTask3Forward::test_in_the_dtype_of_the_model
"""

import mlx.core as mx

from tinymlx import kernels
from tinymlx.cache import KVView
from tinymlx.models import qwen3
from tinymlx.models.qwen3 import Qwen3


def forward(model: Qwen3, tokens: mx.array, kv: KVView) -> tuple[mx.array, list[tuple[mx.array, mx.array]]]:
    x = kernels.embed(tokens, model.embed_tokens, mx.float32)
    fresh = []
    for layer, layer_kv in zip(model.layers, kv.layers(len(model.layers))):
        x, k, v = qwen3.attention_block(model, layer, x, layer_kv)
        mlp = qwen3.mlp_block if layer.router is None else qwen3.experts_block
        x = mlp(model, layer, x)
        fresh.append((k, v))
    return x, fresh
