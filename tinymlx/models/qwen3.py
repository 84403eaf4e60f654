"""Qwen3, dense and mixture of experts; by config also the shapes of Qwen2 and Llama.

    tokens -> embed -> [ norm_qkv -> qk_norm_rope -> attend -> linear_residual -> norm_gate_up -> linear_residual ] x layers -> head -> logits

The model holds a flat dict of weights under their Hugging Face names and is cheap to make anew, so that a compiled step takes the
weights as inputs: `Qwen3(config, weights, quantization)(tokens, kv)`.
"""

from collections.abc import Mapping
from typing import NamedTuple

import mlx.core as mx

from tinymlx import kernels, ops
from tinymlx.cache import KVView
from tinymlx.models.config import ModelConfig
from tinymlx.ops.linear import Linear, Lora, Quantization


class Layer(NamedTuple):
    """One block's weights. Either gate_proj, up_proj and down_proj are dense, or they are experts behind `router`."""

    input_layernorm: mx.array
    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    o_proj: Linear
    q_norm: mx.array | None
    k_norm: mx.array | None
    post_attention_layernorm: mx.array
    router: Linear | None
    gate_proj: Linear
    up_proj: Linear
    down_proj: Linear
    window: int | None


class Qwen3:
    """weights: Hugging Face names to arrays; quantization: how each packed module is packed; loras: low-rank changes by module."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, mx.array],
        quantization: Mapping[str, Quantization] | None = None,
        loras: Mapping[str, Lora] | None = None,
    ):
        self.config, self.weights = config, weights
        self.quantization, self.loras = quantization or {}, loras or {}
        self.rope_periods, self.rope_scale = ops.rope_periods(config.head_dim, config.rope_theta, config.rope_scaling)
        self.embed_tokens = self._linear("model.embed_tokens")
        self.layers = [self._layer(i) for i in range(config.num_hidden_layers)]
        self.norm = weights["model.norm.weight"]
        self.lm_head = self.embed_tokens if config.tie_word_embeddings else self._linear("lm_head")
        self.dtype = self.norm.dtype

    def _linear(self, module: str) -> Linear:
        get = self.weights.get
        parts = (get(f"{module}.{part}") for part in ("bias", "scales", "biases"))
        return Linear(self.weights[f"{module}.weight"], *parts, self.quantization.get(module), self.loras.get(module))

    def _layer(self, i: int) -> Layer:
        block = f"model.layers.{i}"
        attention, mlp = f"{block}.self_attn", f"{block}.mlp"
        moe = self.config.moe_layers[i]
        experts = f"{mlp}.switch_mlp" if moe else mlp
        norm = lambda name: self.weights[f"{attention}.{name}.weight"] if self.config.qk_norm else None  # noqa: E731
        return Layer(
            self.weights[f"{block}.input_layernorm.weight"],
            *(self._linear(f"{attention}.{name}_proj") for name in "qkvo"),
            norm("q_norm"),
            norm("k_norm"),
            self.weights[f"{block}.post_attention_layernorm.weight"],
            self._linear(f"{mlp}.gate") if moe else None,
            *(self._linear(f"{experts}.{name}_proj") for name in ("gate", "up", "down")),
            self.config.sliding_windows[i],
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all weights and adapters in memory."""
        loras = sum(a.nbytes for lora in self.loras.values() for a in (lora.a, lora.b))
        return sum(w.nbytes for w in self.weights.values()) + loras

    @property
    def nbytes_per_token(self) -> int:
        """Bytes of weights that decoding one token reads: all, but one row of an untied embedding and the chosen experts."""
        total = self.nbytes
        if not self.config.tie_word_embeddings:
            total -= sum(w.nbytes for name, w in self.weights.items() if name.startswith("model.embed_tokens."))
        if self.config.num_experts:
            experts = sum(w.nbytes for name, w in self.weights.items() if ".switch_mlp." in name)
            total -= experts * (self.config.num_experts - self.config.num_experts_per_tok) // self.config.num_experts
        return total

    @property
    def kv_nbytes_per_token(self) -> int:
        """Bytes of keys and values that one token occupies in all layers."""
        config = self.config
        return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * self.dtype.size

    def __call__(self, tokens: mx.array, kv: KVView) -> tuple[mx.array, list[tuple[mx.array, mx.array]]]:
        """tokens: [B, L]. Returns hidden [B, L, K], before the last norm, and each layer's new keys and values, each [B, G, L, D]."""
        return forward(self, tokens, kv)

    def head(self, hidden: mx.array) -> mx.array:
        """hidden: [B, L, K]. Returns logits [B, L, V], padded vocabulary rows included."""
        return kernels.head(hidden, self.norm, self.config.rms_norm_eps, self.lm_head)


def forward(model: Qwen3, tokens: mx.array, kv: KVView) -> tuple[mx.array, list[tuple[mx.array, mx.array]]]:
    """All blocks in a row. tokens: [B, L]. Returns hidden [B, L, K], before the last norm, and each layer's new keys and values."""
    x = kernels.embed(tokens, model.embed_tokens, model.dtype)
    fresh = []
    for layer, layer_kv in zip(model.layers, kv.layers(len(model.layers))):
        x, k, v = attention_block(model, layer, x, layer_kv)
        x = mlp_block(model, layer, x) if layer.router is None else experts_block(model, layer, x)
        fresh.append((k, v))
    return x, fresh


def attention_block(model: Qwen3, layer: Layer, x: mx.array, kv: KVView) -> tuple[mx.array, mx.array, mx.array]:
    """x + o_proj(attention(norm(x))). x: [B, L, K]. Returns [B, L, K] and the layer's new keys and values, each [B, G, L, D]."""
    B, L, _ = x.shape
    config, eps = model.config, model.config.rms_norm_eps
    q, k, v = kernels.norm_qkv(x, layer.input_layernorm, eps, layer.q_proj, layer.k_proj, layer.v_proj)
    q, k = kernels.qk_norm_rope(q, k, layer.q_norm, layer.k_norm, eps, kv.lengths, model.rope_periods, model.rope_scale)
    v = v.reshape(B, L, config.num_key_value_heads, config.head_dim).swapaxes(1, 2)
    y, _ = kernels.attend(q, k, v, kv, scale=config.attention_scale, window=layer.window)
    return kernels.linear_residual(x, y.swapaxes(1, 2).reshape(B, L, -1), layer.o_proj), k, v


def mlp_block(model: Qwen3, layer: Layer, x: mx.array) -> mx.array:
    """x + down_proj(silu(gate_proj(norm(x))) * up_proj(norm(x))). x: [B, L, K]."""
    eps = model.config.rms_norm_eps
    y = kernels.norm_gate_up(x, layer.post_attention_layernorm, eps, layer.gate_proj, layer.up_proj)
    return kernels.linear_residual(x, y, layer.down_proj)


def experts_block(model: Qwen3, layer: Layer, x: mx.array) -> mx.array:
    """x + the weighted outputs of each token's experts. x: [B, L, K]."""
    experts = (layer.router, layer.gate_proj, layer.up_proj, layer.down_proj)
    options = dict(top_k=model.config.num_experts_per_tok, normalize=model.config.norm_topk_prob)
    return x + kernels.norm_experts(x, layer.post_attention_layernorm, model.config.rms_norm_eps, *experts, **options)


def tensor_shapes(config: ModelConfig) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """What a checkpoint must hold: shapes of linear modules' dense weights by module, and of all other tensors by name."""
    K, D, I, V = config.hidden_size, config.head_dim, config.intermediate_size, config.vocab_size  # noqa: E741
    H, G = config.num_attention_heads * D, config.num_key_value_heads * D
    linears: dict[str, tuple[int, ...]] = {"model.embed_tokens": (V, K)}
    others: dict[str, tuple[int, ...]] = {"model.norm.weight": (K,)}
    if not config.tie_word_embeddings:
        linears["lm_head"] = (V, K)
    for i in range(config.num_hidden_layers):
        block = f"model.layers.{i}"
        attention = {"q": (H, K), "k": (G, K), "v": (G, K), "o": (K, H)}
        linears |= {f"{block}.self_attn.{name}_proj": shape for name, shape in attention.items()}
        biased = "qkv" * config.attention_bias + "o" * config.attention_output_bias
        others |= {f"{block}.self_attn.{name}_proj.bias": attention[name][:1] for name in biased}
        others |= {f"{block}.{name}_layernorm.weight": (K,) for name in ("input", "post_attention")}
        if config.qk_norm:
            others |= {f"{block}.self_attn.{name}_norm.weight": (D,) for name in "qk"}
        if config.moe_layers[i]:
            E, N = config.num_experts, config.moe_intermediate_size
            linears[f"{block}.mlp.gate"] = (E, K)
            experts = {"gate": (E, N, K), "up": (E, N, K), "down": (E, K, N)}
            linears |= {f"{block}.mlp.switch_mlp.{name}_proj": shape for name, shape in experts.items()}
        else:
            mlp = {"gate": (I, K), "up": (I, K), "down": (K, I)}
            linears |= {f"{block}.mlp.{name}_proj": shape for name, shape in mlp.items()}
            if config.mlp_bias:
                others |= {f"{block}.mlp.{name}_proj.bias": shape[:1] for name, shape in mlp.items()}
    return linears, others
