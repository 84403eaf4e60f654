"""config.json: what is honoured, what is refused by name."""

import math

import pytest
from tiny import Absent, tiny_config

from tinymlx.errors import UserError
from tinymlx.models.config import ModelConfig, token_ids
from tinymlx.models.qwen3 import tensor_shapes

pytestmark = pytest.mark.capability("unknown configurations refused")


def read(model_type="qwen3", /, **overrides):
    raw = tiny_config(model_type) | overrides
    return ModelConfig.from_dict({key: value for key, value in raw.items() if value is not Absent}, "config.json")


@pytest.mark.parametrize(
    "model_type, head_dim, qk_norm, qkv_bias, o_bias",
    [("qwen3", 128, True, False, False), ("qwen3_moe", 16, True, False, False), ("qwen2", 64, False, True, False), ("llama", 64, False, False, False)],
)  # fmt: skip
def test_defaults_of_each_architecture(model_type, head_dim, qk_norm, qkv_bias, o_bias):
    config = read(model_type, head_dim=Absent, attention_bias=Absent)
    assert (config.head_dim, config.qk_norm) == (head_dim, qk_norm)
    assert (config.attention_bias, config.attention_output_bias) == (qkv_bias, o_bias)


def test_bias_of_llama_and_qwen3_includes_the_output():
    assert read("llama", attention_bias=True).attention_output_bias
    assert read("qwen3", attention_bias=True).attention_output_bias


def test_rope_in_both_places_and_under_both_names():
    yarn = {"factor": 4.0, "original_max_position_embeddings": 64}
    old = read(rope_theta=5e5, rope_scaling={"type": "yarn", **yarn})
    new = read(rope_theta=Absent, rope_parameters={"rope_type": "yarn", "rope_theta": 5e5, **yarn})
    assert old.rope_theta == new.rope_theta == 5e5
    assert old.rope_scaling["rope_type"] == new.rope_scaling["rope_type"] == "yarn"
    assert read(rope_theta=1e4, rope_parameters={"rope_theta": 5e5}).rope_theta == 5e5  # as in transformers
    assert read(rope_scaling={"rope_type": "default"}).rope_scaling is None
    assert (
        read(rope_scaling={"rope_type": "yarn", "factor": 2.0}).rope_scaling["original_max_position_embeddings"] == 512
    )


def test_sliding_windows():
    assert read().sliding_windows == (None, None)
    assert read(sliding_window=8).sliding_windows == (None, None)  # use_sliding_window is not set
    assert read(sliding_window=8, use_sliding_window=True, max_window_layers=1).sliding_windows == (None, 8)
    kinds = ["sliding_attention", "full_attention"]
    assert read(sliding_window=8, use_sliding_window=True, layer_types=kinds).sliding_windows == (8, None)


def test_moe_layers():
    assert read("qwen3_moe", num_hidden_layers=4, decoder_sparse_step=2).moe_layers == (False, True, False, True)
    assert read("qwen3_moe", mlp_only_layers=[0]).moe_layers == (False, True)


@pytest.mark.parametrize("value, ids", [(None, ()), (5, (5,)), ([1, 2], (1, 2)), ([], ())])
def test_token_ids(value, ids):
    assert token_ids(value, "config.json") == ids


@pytest.mark.parametrize("value", ["x", [1, "x"], True, -1, {"a": 1}, 2.0])
def test_token_ids_that_are_none(value):
    with pytest.raises(UserError, match="generation_config.json: eos_token_id is"):
        token_ids(value, "generation_config.json")


def test_yarn_lengthens_the_context_that_it_names():
    yarn = {"rope_type": "yarn", "factor": 4.0}
    assert read().max_context == read(rope_scaling=yarn).max_context == 512
    assert read(rope_scaling=yarn | {"original_max_position_embeddings": 512}).max_context == 2048
    assert read(rope_scaling=yarn | {"original_max_position_embeddings": 64}).max_context == 512


REFUSED = {
    "architecture": (dict(model_type="mamba"), "mamba"),
    "no architecture": (dict(model_type=None), "model_type None"),
    "activation": (dict(hidden_act="gelu"), "gelu"),
    "scaling": (dict(rope_scaling={"rope_type": "longrope", "factor": 2.0}), "longrope"),
    "scaling under type": (dict(rope_scaling={"type": "dynamic", "factor": 2.0}), "dynamic"),
    "scaling without factor": (dict(rope_scaling={"type": "yarn"}), "factor"),
    "scaling not an object": (dict(rope_scaling=[1]), "rope_scaling"),
    "factor": (dict(rope_scaling={"type": "linear", "factor": "four"}), "factor"),
    "negative beta": (dict(rope_scaling={"type": "yarn", "factor": 2.0, "beta_fast": -1}), "beta_fast"),
    "attention factor": (
        dict(rope_scaling={"type": "yarn", "factor": 2.0, "attention_factor": float("nan")}),
        "attention_factor",
    ),
    "rope by kind of layer": (
        dict(rope_parameters={"full_attention": {"rope_type": "yarn", "factor": 2.0}}),
        "full_attention",
    ),
    "layer types not a list": (dict(layer_types=7), "layer_types"),
    "huge": (dict(vocab_size=10**30), "vocab_size"),
    "experts without end": (
        dict(model_type="qwen3_moe", num_experts=2**63, num_experts_per_tok=2, moe_intermediate_size=8),
        "num_experts",
    ),
    "whole number beyond floats": (dict(rope_scaling={"type": "linear", "factor": 10**400}), "factor"),
    "tiny factor": (dict(rope_scaling={"type": "yarn", "factor": 5e-324}), "factor"),
    "theta beyond use": (dict(rope_theta=1e308), "rope_theta"),
    "end token": (dict(eos_token_id="</s>"), "eos_token_id"),
    "partial rotary": (dict(partial_rotary_factor=0.5), "partial_rotary_factor"),
    "layer type": (
        dict(sliding_window=4, use_sliding_window=True, layer_types=["chunked_attention"] * 2),
        "chunked_attention",
    ),
    "layer types without window": (dict(layer_types=["sliding_attention"] * 2), "sliding"),
    "quantization": (dict(quantization_config={"quant_method": "fp8"}), "fp8"),
    "missing": (dict(hidden_size=Absent), "hidden_size is missing"),
    "text for a number": (dict(hidden_size="64"), "hidden_size"),
    "float for a size": (dict(num_hidden_layers=2.5), "num_hidden_layers"),
    "zero": (dict(vocab_size=0), "vocab_size"),
    "negative": (dict(intermediate_size=-3), "intermediate_size"),
    "too many layers": (dict(num_hidden_layers=10**9), "num_hidden_layers"),
    "heads": (dict(num_attention_heads=4, num_key_value_heads=3), "multiple"),
    "odd head": (dict(head_dim=63), "odd"),
    "flag": (dict(tie_word_embeddings="yes"), "tie_word_embeddings"),
    "eps": (dict(rms_norm_eps=float("nan")), "rms_norm_eps"),
    "theta": (dict(rope_theta="big"), "rope_theta"),
    "experts": (
        dict(model_type="qwen3_moe", num_experts=2, num_experts_per_tok=5, moe_intermediate_size=8),
        "num_experts_per_tok",
    ),
}


@pytest.mark.parametrize("overrides, named", REFUSED.values(), ids=REFUSED)
def test_refused_by_name_in_one_line(overrides, named):
    with pytest.raises(UserError) as error:
        read(**overrides)
    message = str(error.value)
    assert message.startswith("config.json: ") and named in message and "\n" not in message


# hidden, layers, heads, kv heads, intermediate, tied (all: head_dim 128, vocabulary 151,936); millions of parameters, and of those without
# embeddings as the model cards give them, in billions.
OFFICIAL = {
    "Qwen3-0.6B": (1024, 28, 16, 8, 3072, True, 596, 0.44),
    "Qwen3-1.7B": (2048, 28, 16, 8, 6144, True, 1721, 1.4),
    "Qwen3-4B": (2560, 36, 32, 8, 9728, True, 4022, 3.6),
    "Qwen3-8B": (4096, 36, 32, 8, 12288, False, 8191, 6.95),
    "Qwen3-14B": (5120, 40, 40, 8, 17408, False, 14768, 13.2),
    "Qwen3-32B": (5120, 64, 64, 8, 25600, False, 32762, 31.2),
    "Qwen3-30B-A3B": (2048, 48, 32, 4, 768, False, 30532, 29.9),
    "Qwen3-235B-A22B": (4096, 94, 64, 4, 1536, False, 235094, 234.0),
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_sizes_have_their_published_parameter_counts(name):
    hidden, layers, heads, kv_heads, intermediate, tied, millions, without_embeddings = OFFICIAL[name]
    moe = dict(num_experts=128, num_experts_per_tok=8, moe_intermediate_size=intermediate) if "-A" in name else {}
    config = read(
        "qwen3_moe" if moe else "qwen3", hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=128, intermediate_size=intermediate, tie_word_embeddings=tied, vocab_size=151936, **moe,
    )  # fmt: skip
    linears, others = tensor_shapes(config)
    count = sum(math.prod(shape) for shape in (*linears.values(), *others.values()))
    embeddings = sum(math.prod(linears[m]) for m in ("model.embed_tokens", "lm_head") if m in linears)
    assert round(count / 1e6) == millions
    assert (count - embeddings) / 1e9 == pytest.approx(without_embeddings, rel=0.02)
