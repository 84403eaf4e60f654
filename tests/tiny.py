"""Tiny checkpoints with random weights, the same bytes on every machine.

`write_checkpoint(folder, model_type="qwen3", seed=3, num_hidden_layers=2)` writes `config.json` and `model.safetensors`
under Hugging Face names. Each tensor is drawn from its own Philox stream, keyed by the seed and the tensor's name: no
order of drawing matters, and nothing needs to be stored. NumPy promises the raw stream of a bit generator but not that
of a distribution, so the raw words are scaled to uniform numbers here and no distribution is used.

The script that makes the golden values reads this file beside torch, so MLX is imported only where it is used.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

_COMMON = {
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 131,
}
_QWEN3 = {"head_dim": 64, "attention_bias": False}
_BY_TYPE = {
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3
    | {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 40,
        "norm_topk_prob": True,
        "num_experts": 6,
        "num_experts_per_tok": 2,
    },
    "qwen2": {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1},
    "llama": {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5},
}
_ARCHITECTURE = {
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "llama": "LlamaForCausalLM",
}


class Absent:
    """`tiny_config(head_dim=Absent)` leaves the key out of the config, so that its default applies."""


def tiny_config(model_type: str = "qwen3", **overrides) -> dict:
    """The contents of a tiny `config.json`; `overrides` replace keys, `Absent` removes one."""
    config = {"architectures": [_ARCHITECTURE[model_type]], "model_type": model_type} | _COMMON | _BY_TYPE[model_type]
    config |= overrides
    return {key: value for key, value in config.items() if value is not Absent}


def uniform(name: str, shape: tuple[int, ...], low: float, high: float, seed: int = 0) -> np.ndarray:
    """float32 numbers in [low, high), from the stream of (seed, name)."""
    words = np.random.Philox(key=[seed, zlib.crc32(name.encode())]).random_raw(int(np.prod(shape)))
    unit = (words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)  # 24 bits: exact in float32
    return (np.float32(low) + np.float32(high - low) * unit).reshape(shape)


def tiny_weights(config: dict, seed: int = 0) -> dict[str, np.ndarray]:
    """float32 weights of `config` under Hugging Face names, scaled so that every part of the model moves the logits.

    Attention is sharp (q and k norms above 1), each block adds about as much as the residual carries, and logits have a
    standard deviation of about 3: the best token leads by far more than float32 noise.
    """
    model_type = config["model_type"]
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    # The defaults of the Hugging Face config classes.
    head_dim = config.get("head_dim") or (128 if model_type == "qwen3" else hidden // heads)
    qk_norm = model_type.startswith("qwen3")
    qkv_bias = model_type == "qwen2" or config.get("attention_bias", False)
    o_bias = model_type != "qwen2" and config.get("attention_bias", False)
    mlp_bias = model_type == "llama" and config.get("mlp_bias", False)
    weights: dict[str, np.ndarray] = {}

    def normal_like(name: str, rows: int, columns: int, std: float) -> None:
        limit = std * 3**0.5  # a uniform number in [-a, a) has standard deviation a / sqrt(3)
        weights[name] = uniform(name, (rows, columns), -limit, limit, seed)

    def linear(name: str, rows: int, columns: int, gain: float = 1.0, bias: bool = False) -> None:
        normal_like(f"{name}.weight", rows, columns, gain * columns**-0.5)
        if bias:
            weights[f"{name}.bias"] = uniform(f"{name}.bias", (rows,), -0.7, 0.7, seed)

    def norm(name: str, size: int, low: float, high: float) -> None:
        weights[f"{name}.weight"] = uniform(f"{name}.weight", (size,), low, high, seed)

    def mlp(name: str, inner: int, gain: float) -> None:
        linear(f"{name}.gate_proj", inner, hidden, 1.5, mlp_bias)
        linear(f"{name}.up_proj", inner, hidden, 1.5, mlp_bias)
        linear(f"{name}.down_proj", hidden, inner, gain, mlp_bias)

    tied = config.get("tie_word_embeddings", False)
    # Tied: a token's own logit is raised by its embedding's share of the residual, so that share is kept small.
    normal_like("model.embed_tokens.weight", config["vocab_size"], hidden, 3.0 * hidden**-0.5 if tied else 0.7)
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        norm(f"{layer}.input_layernorm", hidden, 0.5, 1.5)
        norm(f"{layer}.post_attention_layernorm", hidden, 0.5, 1.5)
        attention = f"{layer}.self_attn"
        qk_gain = 1.0 if qk_norm else 1.5
        linear(f"{attention}.q_proj", heads * head_dim, hidden, qk_gain, qkv_bias)
        linear(f"{attention}.k_proj", kv_heads * head_dim, hidden, qk_gain, qkv_bias)
        linear(f"{attention}.v_proj", kv_heads * head_dim, hidden, 1.0, qkv_bias)
        linear(f"{attention}.o_proj", hidden, heads * head_dim, 2.0, o_bias)
        if qk_norm:
            norm(f"{attention}.q_norm", head_dim, 0.9, 2.1)
            norm(f"{attention}.k_norm", head_dim, 0.9, 2.1)
        if is_sparse(config, index):
            linear(f"{layer}.mlp.gate", config["num_experts"], hidden, 1.5)
            for expert in range(config["num_experts"]):
                mlp(f"{layer}.mlp.experts.{expert}", config["moe_intermediate_size"], 2.0)
        else:
            mlp(f"{layer}.mlp", config["intermediate_size"], 1.0)
    norm("model.norm", hidden, 0.5, 1.5)
    if not tied:
        linear("lm_head", config["vocab_size"], hidden, 3.0)
    return weights


def is_sparse(config: dict, layer: int) -> bool:
    """Whether `layer` of a Qwen3-MoE holds experts: every `decoder_sparse_step`-th one does, unless listed as dense."""
    if config["model_type"] != "qwen3_moe" or layer in (config.get("mlp_only_layers") or []):
        return False
    return (layer + 1) % config.get("decoder_sparse_step", 1) == 0


def write_config(folder: Path, config: dict) -> Path:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder


def write_checkpoint(folder: Path, *, model_type: str = "qwen3", seed: int = 0, shards: int = 1, **overrides) -> Path:
    """Write a float32 checkpoint and return its folder; `overrides` go into `config.json`.

    `shards` above 1 spreads the tensors over that many files with an index, as the hub does for large models.
    """
    config = tiny_config(model_type, **overrides)
    folder = write_config(folder, config)
    weights = tiny_weights(config, seed)
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = sorted(weights)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: weights[name] for name in names[shard::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {
        "metadata": {"total_size": sum(w.nbytes for w in weights.values())},
        "weight_map": dict(sorted(weight_map.items())),
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return folder


def quantized_weights(weights: dict[str, np.ndarray], quantization: dict) -> dict:
    """`weights` as an mlx-community checkpoint holds them: linear layers and the embedding packed by `mx.quantize`.

    quantization: the config's entry with "group_size", "bits" and "mode", and for some modules a dict of these or
    False.
    A dict without a mode means affine, whatever the others have. Experts are stacked under `switch_mlp`, as there.
    Returns arrays of MLX.
    """
    import mlx.core as mx

    arrays = {name: mx.array(weight) for name, weight in weights.items()}
    for first in [name for name in arrays if ".experts.0." in name]:
        before, after = first.split(".experts.0.")
        count = sum(name.startswith(f"{before}.experts.") and name.endswith(after) for name in weights)
        experts = [arrays.pop(f"{before}.experts.{expert}.{after}") for expert in range(count)]
        arrays[f"{before}.switch_mlp.{after}"] = mx.stack(experts)
    packed = {}
    for name, array in arrays.items():
        module = name.removesuffix(".weight")
        how = quantization.get(module, quantization)
        if array.ndim == 1 or how is False:
            packed[name] = array
            continue
        parts = mx.quantize(array, group_size=how["group_size"], bits=how["bits"], mode=how.get("mode", "affine"))
        packed |= {f"{module}.{part}": value for part, value in zip(("weight", "scales", "biases"), parts)}
    return packed


def write_quantized(
    folder: Path, quantization: dict, *, model_type: str = "qwen3", seed: int = 0, scales: str = "float32", **overrides
) -> Path:
    """Write an mlx-community checkpoint and return its folder; `scales` is the dtype of all that is not packed."""
    import mlx.core as mx

    config = tiny_config(model_type, **overrides)
    folder = write_config(folder, config | {"quantization": quantization, "quantization_config": quantization})
    packed = quantized_weights(tiny_weights(config, seed), quantization)
    stored = {
        name: array.astype(getattr(mx, scales)) if mx.issubdtype(array.dtype, mx.floating) else array
        for name, array in packed.items()
    }
    mx.save_safetensors(str(folder / "model.safetensors"), stored, metadata={"format": "mlx"})
    return folder


def prompt(length: int, vocab_size: int, seed: int = 0) -> list[int]:
    """`length` token ids, spread over the whole vocabulary."""
    return (uniform(f"prompt {length}", (length,), 0.0, 1.0, seed) * np.float32(vocab_size)).astype(np.int64).tolist()
