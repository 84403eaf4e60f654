"""Day 1.5: the Qwen3 block and model. Each function replaces the product's of that name; the chapter is README.md here.

tinymlx learn check 1.5 --watch          grades this file whenever you save it
tinymlx learn run 1.5 --prompt "Hi"      answers with your functions inside the engine, on real weights
"""

import mlx.core as mx

from tinymlx import kernels  # the operations to compose: kernels.norm_qkv and others, in a table in the chapter
from tinymlx.cache import KVView
from tinymlx.models.qwen3 import Layer, Qwen3, experts_block

HOMES = {
    "attention_block": "tinymlx.models.qwen3",
    "mlp_block": "tinymlx.models.qwen3",
    "forward": "tinymlx.models.qwen3",
}


def attention_block(model: Qwen3, layer: Layer, x: mx.array, kv: KVView) -> tuple[mx.array, mx.array, mx.array]:
    """x + o_proj(attention(norm(x))): the first half of a block.

    x: [B, L, K], the residual stream. layer: this block's weights. kv: this layer's view of the cache; the first new
    token of row b has position kv.lengths[b]. Attention looks back over layer.window positions (None: all). Returns
    [B, L, K] and the layer's new keys (normalised and turned) and values, each [B, G, L, D]: they are not in the cache.
    """
    raise NotImplementedError("1.5 task 1: the attention half of a block")


def mlp_block(model: Qwen3, layer: Layer, x: mx.array) -> mx.array:
    """x + down_proj(silu(gate_proj(norm(x))) * up_proj(norm(x))): the second half of a block.

    x: [B, L, K], the residual stream after attention_block. Returns [B, L, K].
    """
    raise NotImplementedError("1.5 task 2: the MLP half of a block")


def forward(model: Qwen3, tokens: mx.array, kv: KVView) -> tuple[mx.array, list[tuple[mx.array, mx.array]]]:
    """The embedding and all blocks in a row.

    tokens: [B, L]. kv: the view of the whole cache; kv.layers(n) is the list of n layers' views. Returns hidden
    [B, L, K] in model.dtype, before the last norm, and each layer's new (keys, values). A layer whose `router` is not
    None has experts: experts_block(model, layer, x), which is given, takes mlp_block's place there.
    """
    raise NotImplementedError("1.5 task 3: token ids to hidden states")
