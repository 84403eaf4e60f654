"""One step of a dense model, operator by operator: shapes, arithmetic, bytes."""

from typing import NamedTuple

from tinymlx.errors import UserError
from tinymlx.models.config import ModelConfig


class Operator(NamedTuple):
    """What a step does `times` times. The figures are of one time.

    FLOPs are those of products: the few an element of norms, softmax and SwiGLU do not count. Bytes are of what outlives
    a step: weights read, K/V read and written.
    """

    name: str
    input: tuple[int, ...]
    weight: tuple[int, ...] | None
    output: tuple[int, ...]
    flops: int
    weight_bytes: float
    kv_bytes: int
    times: int


class Total(NamedTuple):
    flops: int
    weight_bytes: float
    kv_bytes: int

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / (self.weight_bytes + self.kv_bytes)

    def floor_s(self, gb_s: float) -> float:
        """Seconds that the bytes take at `gb_s` (10^9 bytes a second). Nothing is faster; much arithmetic is slower."""
        return (self.weight_bytes + self.kv_bytes) / (gb_s * 1e9)


def total(step: list[Operator]) -> Total:
    return Total(*(sum(getattr(operator, field) * operator.times for operator in step) for field in Total._fields))


def operators(
    config: ModelConfig, tokens: int, cached: int, rows: int = 1, *, weight_bytes: float = 2.0, float_bytes: int = 2
) -> list[Operator]:
    """`rows` rows of `tokens` new tokens after `cached` ones: (512, 0) is a prefill, (1, 512) decodes the next token.

    weight_bytes: of a matrix's parameter (bf16 2, 4 bits in groups of 64 0.5625); float_bytes: of a norm's, a bias's and
    of K/V. A query counts against the keys it may see; a row's last token alone goes through the head. Raises UserError
    for experts and sliding windows.
    """
    if any(config.moe_layers) or any(config.sliding_windows):
        raise UserError("only dense models without sliding windows are counted; choose another")
    B, L, T, n = rows, tokens, cached + tokens, config.num_hidden_layers
    K, D, N, V = config.hidden_size, config.head_dim, config.intermediate_size, config.vocab_size
    H, G, x, last = config.num_attention_heads, config.num_key_value_heads, (B, L, K), (B, 1, K)
    one_token, products = B * G * D * float_bytes, 2 * B * H * D * (L * cached + L * (L + 1) // 2)

    def linear(name: str, source: tuple, to: int, bias: bool = False, times: int = n) -> Operator:
        flops, read = 2 * source[0] * source[1] * source[2] * to, to * (source[2] * weight_bytes + bias * float_bytes)
        return Operator(name, source, (to, source[2]), (*source[:2], to), flops, read, 0, times)

    def norm(name: str, x: tuple, times: int = n) -> Operator:
        return Operator(name, x, x[-1:], x, 0, x[-1] * float_bytes, 0, times)

    return [
        Operator("embed_tokens", (B, L), (V, K), x, 0, B * L * K * weight_bytes, 0, 1),
        norm("input_layernorm", x),
        *(linear(f"{name}_proj", x, heads * D, config.attention_bias) for name, heads in zip("qkv", (H, G, G))),
        *(norm(f"{name}_norm", (B, L, heads, D)) for name, heads in zip("qk", (H, G)) if config.qk_norm),
        Operator("rope", (B, H + G, L, D), None, (B, H + G, L, D), 0, 0, 0, n),
        Operator("q k^T", (B, H, L, D), None, (B, H, L, T), products, 0, cached * one_token, n),
        Operator("softmax", (B, H, L, T), None, (B, H, L, T), 0, 0, 0, n),
        Operator("weights v", (B, H, L, T), None, (B, H, L, D), products, 0, cached * one_token, n),
        Operator("k, v to the cache", (2, B, G, L, D), None, (2, B, G, L, D), 0, 0, 2 * L * one_token, n),
        linear("o_proj", (B, L, H * D), K, config.attention_output_bias),
        norm("post_attention_layernorm", x),
        *(linear(f"{name}_proj", x, N, config.mlp_bias) for name in ("gate", "up")),
        Operator("silu(gate) up", (B, L, N), None, (B, L, N), 0, 0, 0, n),
        linear("down_proj", (B, L, N), K, config.mlp_bias),
        norm("norm", last, times=1),
        linear("lm_head", last, V, times=1),
    ]
