"""The golden cases: a name, what it holds apart, and the keys of `config.json` that differ from tests/tiny.py's.

Read by make_golden.py (beside torch) and by tests/test_golden.py (beside MLX), so it imports neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tiny import Absent

YARN = {"factor": 4.0, "original_max_position_embeddings": 32}  # prompt and answer reach position 96, three times that
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
PROMPT_LENGTHS = (1, 7, 33)
NEW_TOKENS = 64


def rows_of(length: int) -> range:
    """Positions whose logits are stored: all of a short prompt, every fourth of a long one, its last one too.

    33 -> 0, 4, ..., 32
    """
    return range(0, length, 4 if length > 8 else 1)


@dataclass(frozen=True)
class Case:
    """A checkpoint (`overrides`, `seed`) and how it is sampled (`sampled_vocab`: ids below it only; None: all)."""

    model_type: str = "qwen3"
    overrides: dict = field(default_factory=dict)
    seed: int = 0
    sampled_vocab: int | None = None


def _heads(heads: int, kv_heads: int, head_dim: int) -> dict:
    return {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}


def _absent(*keys: str) -> dict:
    return dict.fromkeys(keys, Absent)


def _moe(seed: int = 0, **overrides) -> Case:
    return Case("qwen3_moe", overrides, seed)


CASES: dict[str, Case] = {
    # Shapes: every ratio of query heads to K/V heads, both head sizes, tied and not, sizes that are no multiple of 64.
    "gqa1_hd64": Case(overrides=_heads(2, 2, 64) | {"intermediate_size": 150}),
    "gqa2_hd64_tied": Case(overrides=_heads(4, 2, 64) | {"tie_word_embeddings": True, "vocab_size": 257}),
    "gqa4_hd64": Case(overrides=_heads(8, 2, 64)),
    "gqa8_hd64_tied": Case(overrides=_heads(8, 1, 64) | {"tie_word_embeddings": True}),
    "gqa1_hd128_tied": Case(overrides=_heads(2, 2, 128) | {"tie_word_embeddings": True}, seed=1),
    "gqa2_hd128": Case(overrides=_heads(4, 2, 128) | {"num_hidden_layers": 3}, seed=2),
    "gqa4_hd128": Case(overrides=_heads(4, 1, 128) | {"vocab_size": 997}, seed=4),
    "gqa8_hd128": Case(overrides=_heads(8, 1, 128), seed=2),
    "gqa5_odd_hidden": Case(overrides=_heads(5, 1, 64) | {"hidden_size": 72, "intermediate_size": 100}),
    "head_dim_is_hidden_over_heads": Case(overrides=_heads(2, 1, 64) | {"hidden_size": 128}, seed=1),
    "attention_bias": Case(overrides={"attention_bias": True}, seed=3),
    "rms_norm_eps": Case(overrides={"rms_norm_eps": 0.1}, seed=3),
    "defaults": Case(
        overrides=_absent("head_dim", "rope_theta", "rms_norm_eps", "tie_word_embeddings", "attention_bias"), seed=1
    ),
    # Rows of the embedding that no tokenizer knows: they would win a quarter of the draws if they were not shut out.
    "padded_vocabulary": Case(overrides={"vocab_size": 192}, sampled_vocab=131),
    # Rotary positions.
    "rope_theta": Case(overrides={"rope_theta": 1_000_000.0}),
    "rope_theta_in_rope_parameters": Case(
        overrides={"rope_theta": Absent, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}
    ),
    "yarn_type": Case(overrides={"rope_scaling": {"type": "yarn"} | YARN}, seed=2),
    "yarn_rope_type": Case(overrides={"rope_theta": 1_000_000.0, "rope_scaling": {"rope_type": "yarn"} | YARN}),
    "yarn_rope_parameters": Case(
        overrides={"rope_theta": Absent, "rope_parameters": {"rope_type": "yarn", "rope_theta": 5000.0} | YARN}
    ),
    "yarn_attention_factor": Case(
        overrides={"rope_scaling": {"rope_type": "yarn", "attention_factor": 1.5} | YARN}, seed=1
    ),
    "yarn_beta": Case(overrides={"rope_scaling": {"rope_type": "yarn", "beta_fast": 2.0, "beta_slow": 0.25} | YARN}),
    "yarn_mscale": Case(overrides={"rope_scaling": {"rope_type": "yarn", "mscale": 1.5, "mscale_all_dim": 0.5} | YARN}),
    "yarn_not_truncated": Case(
        overrides={"rope_scaling": {"rope_type": "yarn", "beta_fast": 2.0, "truncate": False} | YARN}
    ),
    "yarn_without_original_length": Case(
        overrides={"max_position_embeddings": 128, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    ),
    "linear": Case(overrides={"rope_scaling": {"type": "linear", "factor": 3.0}}),
    "llama3": Case(overrides={"rope_scaling": LLAMA3}, seed=1),
    # Sliding window: 5 tokens, fewer than the prompt; the first layers see everything.
    "sliding_window": Case(
        overrides={"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    ),
    "sliding_window_layer_types": Case(
        overrides={
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        seed=3,
    ),
    "sliding_window_unused": Case(overrides={"use_sliding_window": False, "sliding_window": 5, "max_window_layers": 0}),
    # Mixture of experts.
    "moe": _moe(seed=3),
    "moe_not_normalised": _moe(norm_topk_prob=False, seed=1),
    "moe_one_expert": _moe(num_experts_per_tok=1, num_experts=5, seed=2),
    # Eleven experts: by name number 10 comes before number 2.
    "moe_sparse_step": _moe(
        num_hidden_layers=3, decoder_sparse_step=2, num_experts=11, num_experts_per_tok=3, intermediate_size=96, seed=1
    ),
    "moe_mlp_only_layers": _moe(num_hidden_layers=3, mlp_only_layers=[1], attention_bias=True),
    "moe_yarn": _moe(rope_scaling={"rope_type": "yarn"} | YARN, tie_word_embeddings=True),
    "moe_sliding_window": _moe(use_sliding_window=True, sliding_window=5),  # no max_window_layers here: every layer
    "moe_defaults": _moe(
        **_absent("head_dim", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"),
        hidden_size=128,
        num_attention_heads=2,
        seed=2,
    ),
    # The same file by config: no q and k norms; biases on q, k, v only (Qwen2), on all or none (Llama).
    "qwen2": Case("qwen2"),
    "qwen2_sliding_window": Case(
        "qwen2",
        {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}
        | {"tie_word_embeddings": True},
        seed=1,
    ),
    "llama": Case("llama", {"num_key_value_heads": Absent}, seed=3),
    "llama_biases": Case("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 128}, seed=2),
    "llama_llama3": Case("llama", {"rope_scaling": LLAMA3, "rope_theta": 500_000.0, "tie_word_embeddings": True}),
}
