"""GGUF metadata -> the `config.json` and `generation_config.json` that the same model has on the Hugging Face hub.

    {"general.architecture": "qwen3", "qwen3.embedding_length": 1024} -> {"model_type": "qwen3", "hidden_size": 1024}

Key names: gguf's constants (ggml repository, gguf-py). What a file asks for and this package lacks is refused by name.
"""

import math
from typing import Any, NoReturn

import numpy as np

from tinymlx.errors import UserError
from tinymlx.hub.gguf_format import GGUFFile

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
MODEL_TYPES = {"qwen3moe": "qwen3_moe"}

# Present and not zero, these change what the model computes in ways it does not implement.
_REFUSED = (
    "attention.sliding_window", "attention.scale", "attention.clamp_kqv", "attention.max_alibi_bias",
    "attention.temperature_scale", "attention.temperature_length", "attention.output_scale", "attention.key_length_mla",
    "logit_scale", "residual_scale", "embedding_scale", "attn_logit_softcapping", "final_logit_softcapping",
    "rope.scaling.alpha", "rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor", "rope.dimension_sections", "use_parallel_residual",
)  # fmt: skip


def architecture_of(file: GGUFFile) -> str:
    """The file's `general.architecture`, one of ARCHITECTURES; UserError otherwise."""
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UserError(f"{file.path}: the architecture is {architecture!r}; supported are {known}")
    return architecture


def config_of(file: GGUFFile) -> dict[str, Any]:
    """The config of `file`, all but "quantization" and "torch_dtype" (which the checkpoint adds from its tensors).

    Raises UserError naming the metadata key that is missing, of a wrong type, or asks for something unsupported.
    """
    architecture = architecture_of(file)
    keys = _Keys(file, architecture)
    keys.refuse_unsupported()
    heads = keys.count("attention.head_count")
    hidden_size = keys.count("embedding_length")
    config = {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": MODEL_TYPES.get(architecture, architecture),
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "num_hidden_layers": keys.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.count("attention.head_count_kv", heads),
        "head_dim": keys.count("attention.key_length", hidden_size // heads),
        "intermediate_size": keys.count("feed_forward_length"),
        "max_position_embeddings": keys.count("context_length"),
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.real("rope.freq_base", 10000.0),
        "rope_scaling": keys.rope_scaling(),
        "vocab_size": keys.tensor_shape("token_embd.weight")[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
    }
    for name in ("attention.value_length", "rope.dimension_count"):
        if keys.count(name, config["head_dim"]) != config["head_dim"]:
            keys.fail(name, f"is {keys.count(name)}, but only the head dimension {config['head_dim']} is supported")
    config |= keys.experts()
    for name in ("bos_token_id", "eos_token_id"):
        token = file.metadata.get(f"tokenizer.ggml.{name}")
        if type(token) is int:
            config[name] = token
    return config


def generation_config_of(file: GGUFFile) -> dict[str, Any]:
    """The sampling defaults of newer files (`general.sampling.*`), by Hugging Face name; {} when there are none."""
    names = {
        "temp": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "penalty_repeat": "repetition_penalty",
    }
    found = {name: file.metadata.get(f"general.sampling.{key}") for key, name in names.items()}
    return {name: _shortest(value) for name, value in found.items() if isinstance(value, int | float)}


def _shortest(value: int | float) -> int | float:
    # Reals are stored as float32: 1e-06 comes back as 9.999999974752427e-07. The shortest decimal that rounds to the
    # same float32 is the number the model's author wrote.
    return value if isinstance(value, int) else float(str(np.float32(value)))


class _Keys:
    """The `<architecture>.*` metadata, with the checks that every value needs."""

    def __init__(self, file: GGUFFile, architecture: str):
        self.file, self.architecture = file, architecture

    def fail(self, name: str, what: str) -> NoReturn:
        raise UserError(f"{self.file.path}: metadata key {self.architecture}.{name} {what}")

    def get(self, name: str, default: Any = None) -> Any:
        value = self.file.metadata.get(f"{self.architecture}.{name}")
        if value is None:
            if default is None:
                self.fail(name, "is missing; convert the model again")
            return default
        if isinstance(value, np.ndarray):  # one value a layer: supported where all layers agree
            if len(value) == 0 or (value != value[0]).any():
                self.fail(name, "differs between layers, which is not supported")
            return value[0].item()
        if isinstance(value, list):
            self.fail(name, "is a list of strings")
        return value

    def count(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if type(value) is not int or value <= 0:
            self.fail(name, f"is {value!r}, not a positive whole number")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            self.fail(name, f"is {value!r}, not a positive number")
        return float(_shortest(value))

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        if name not in self.file.tensors:
            raise UserError(f"{self.file.path}: tensor {name} is missing; download the file again")
        return self.file.tensors[name].shape

    def refuse_unsupported(self) -> None:
        for name in _REFUSED:
            value = self.file.metadata.get(f"{self.architecture}.{name}")
            if value is not None and np.any(value):
                self.fail(name, f"is {value}, which is not supported")

    def rope_scaling(self) -> dict[str, Any] | None:
        if "rope_freqs.weight" in self.file.tensors:
            return self.llama3_scaling()
        kind = self.get("rope.scaling.type", "none")
        factor = self.real("rope.scaling.factor", 1.0)
        linear = self.real("rope.scale_linear", 1.0)  # how files before 2023-10 said it
        if kind == "none" and linear != 1.0:
            kind, factor = "linear", linear
        if kind == "none" or (kind == "linear" and factor == 1.0):
            return None
        if kind == "linear":
            return {"rope_type": "linear", "factor": factor}
        if kind != "yarn":
            self.fail("rope.scaling.type", f"is {kind!r}; supported are none, linear and yarn")
        scaling = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": self.count("rope.scaling.original_context_length"),
        }
        for name in ("beta_fast", "beta_slow"):
            if f"{self.architecture}.rope.scaling.yarn_{name}" in self.file.metadata:
                scaling[name] = self.real(f"rope.scaling.yarn_{name}")
        attention = self.real("rope.scaling.attn_factor", 1.0)
        if attention != 1.0:
            # ggml multiplies its factor onto YaRN's own (ggml_rope_yarn); the Hugging Face key replaces it.
            scaling["attention_factor"] = attention * (0.1 * math.log(factor) + 1.0)
        return scaling

    def llama3_scaling(self) -> dict[str, Any]:
        """Llama 3's scaling from the divisors of each frequency that llama.cpp stores in its place, `rope_freqs.weight`
        [head_dim/2].

        All Llama 3 models use the constants below and differ in `factor` only, which is the largest divisor; that the
        divisors follow is checked, not assumed.
        """
        tensor = self.file.tensors["rope_freqs.weight"]
        scaling = {
            "rope_type": "llama3",
            "factor": 0.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        if tensor.type.name == "F32":
            stored = self.file.bytes_of(tensor).view(np.float32).astype(np.float64)
            scaling["factor"] = float(_shortest(stored.max()))
            turns = 8192 / (2 * np.pi * self.real("rope.freq_base", 10000.0) ** (np.arange(stored.size) / stored.size))
            smooth = np.clip(
                (turns - 1.0) / (4.0 - 1.0), 0.0, 1.0
            )  # turns within the original context: 1 is slow, 4 is fast
            if np.allclose(stored, 1 / ((1 - smooth) / scaling["factor"] + smooth), rtol=1e-4):
                return scaling
        raise UserError(
            f"{self.file.path}: tensor rope_freqs.weight is no Llama 3 rope scaling; other factors are not supported"
        )

    def experts(self) -> dict[str, Any]:
        if self.architecture != "qwen3moe":
            if self.get("expert_count", 0):
                self.fail("expert_count", f"is {self.get('expert_count')}: experts are supported for qwen3moe only")
            return {}
        return {
            "num_experts": self.count("expert_count"),
            "num_experts_per_tok": self.count("expert_used_count"),
            "moe_intermediate_size": self.count("expert_feed_forward_length"),
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
