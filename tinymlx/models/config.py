"""config.json of a Qwen3, Qwen3-MoE, Qwen2 or Llama checkpoint, with Hugging Face's key names.

What this code does not do (a scaling, an activation, an architecture it does not know) is refused by name rather than ignored.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
from pydantic import Field

from tinymlx.errors import UserError

MODEL_TYPES = ("qwen3", "qwen3_moe", "qwen2", "llama")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
# What each scaling needs beside `factor`.
_ROPE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}

Positive = Annotated[int, Field(gt=0)]


class ModelConfig(pydantic.BaseModel):
    """Hugging Face's keys, checked and with every default filled in. Sizes are counts of elements."""

    model_config = pydantic.ConfigDict(frozen=True, protected_namespaces=())

    model_type: str
    hidden_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    num_key_value_heads: Positive
    head_dim: Positive
    intermediate_size: Positive
    vocab_size: Positive
    max_position_embeddings: Positive
    max_context: Positive
    """Most tokens of prompt and answer: max_position_embeddings, or what YaRN makes of the original length it names."""
    rms_norm_eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-6
    rope_theta: Annotated[float, Field(gt=1, allow_inf_nan=False)]
    rope_scaling: dict[str, Any] | None = None
    """As Hugging Face writes it, with `rope_type` and `original_max_position_embeddings` filled in; None when unscaled."""
    tie_word_embeddings: bool = False
    qk_norm: bool = False
    """Whether query and key heads are normalised: Qwen3."""
    attention_bias: bool = False
    """Bias on q, k and v."""
    attention_output_bias: bool = False
    """Bias on o."""
    mlp_bias: bool = False
    sliding_windows: tuple[int | None, ...] = ()
    """For each layer the number of positions it may look back on, itself included; None is all."""
    num_experts: Annotated[int, Field(ge=0)] = 0
    num_experts_per_tok: Annotated[int, Field(ge=0)] = 0
    moe_intermediate_size: Annotated[int, Field(ge=0)] = 0
    norm_topk_prob: bool = False
    moe_layers: tuple[bool, ...] = ()
    """For each layer whether its MLP is a mixture of experts."""
    eos_token_ids: tuple[int, ...] = ()

    @property
    def attention_scale(self) -> float:
        return self.head_dim**-0.5

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], file: str = "config.json") -> "ModelConfig":
        """Read config.json's dict. Raises UserError naming `file`, the key and what is accepted."""
        return _Reader(raw, file).read()


class _Reader:
    def __init__(self, raw: Mapping[str, Any], file: str):
        self.raw, self.file = raw, file

    def fail(self, what: str) -> UserError:
        return UserError(f"{self.file}: {what}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.raw.get(key)
        value = default if value is None else value
        if value is None:
            raise self.fail(f"{key} is missing; take the config.json that belongs to these weights")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(f"{key} is {value!r}, not an integer")
        if abs(value) > 2**31:
            raise self.fail(f"{key} is {value}, more than a tensor can have")
        return value

    def read(self) -> ModelConfig:
        raw = self.raw
        model_type = raw.get("model_type")
        if model_type not in MODEL_TYPES:
            raise self.fail(f"model_type {model_type!r} is not supported; tinymlx runs {', '.join(MODEL_TYPES)}")
        activation = raw.get("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise self.fail(f"hidden_act {activation!r} is not supported; only silu is")
        if raw.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise self.fail(f"partial_rotary_factor {raw['partial_rotary_factor']!r} is not supported; only 1.0 is")
        self.refuse_foreign_quantization()

        heads, hidden, layers = (
            self.integer("num_attention_heads"),
            self.integer("hidden_size"),
            self.integer("num_hidden_layers"),
        )
        if heads < 1 or layers < 1:
            raise self.fail("num_attention_heads and num_hidden_layers must be at least 1")
        if layers > 10_000:
            raise self.fail(f"num_hidden_layers is {layers}; the largest Qwen3 has 94")
        max_positions = self.integer("max_position_embeddings", 32768 if model_type != "llama" else 2048)
        theta, scaling, max_context = self.rope(max_positions)
        bias = self.flag("attention_bias", model_type == "qwen2")
        values = dict(
            model_type=model_type,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=self.integer("num_key_value_heads", heads),
            head_dim=self.integer("head_dim", 128 if model_type == "qwen3" else max(hidden // heads, 1)),
            intermediate_size=self.integer("intermediate_size"),
            vocab_size=self.integer("vocab_size"),
            max_position_embeddings=max_positions,
            max_context=max_context,
            rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            tie_word_embeddings=self.flag("tie_word_embeddings", False),
            qk_norm=self.flag("qk_norm", model_type.startswith("qwen3")),
            attention_bias=bias,
            attention_output_bias=bias and model_type != "qwen2",
            mlp_bias=self.flag("mlp_bias", False),
            sliding_windows=self.sliding_windows(layers),
            moe_layers=self.moe_layers(layers),
            eos_token_ids=token_ids(raw.get("eos_token_id"), self.file),
        )
        if any(values["moe_layers"]):
            values.update(
                num_experts=self.integer("num_experts"),
                num_experts_per_tok=self.integer("num_experts_per_tok"),
                moe_intermediate_size=self.integer("moe_intermediate_size"),
                norm_topk_prob=self.flag("norm_topk_prob", False),
            )
            if values["num_experts"] > 10_000:
                raise self.fail(f"num_experts is {values['num_experts']}; the largest Qwen3 has 128")
            if not 1 <= values["num_experts_per_tok"] <= values["num_experts"]:
                raise self.fail(
                    f"num_experts_per_tok {values['num_experts_per_tok']} is not in 1..num_experts ({values['num_experts']})"
                )
        try:
            config = ModelConfig(**values)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise self.fail(f"{key} is {first['input']!r}: {first['msg'].lower()}") from None
        if config.num_attention_heads % config.num_key_value_heads:
            raise self.fail(
                f"num_attention_heads {config.num_attention_heads} is not a multiple of num_key_value_heads {config.num_key_value_heads}"
            )
        if config.head_dim % 2:
            raise self.fail(f"head_dim {config.head_dim} is odd; rotary embedding turns pairs")
        return config

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.fail(f"{key} is {value!r}, not true or false")
        return value

    def refuse_foreign_quantization(self) -> None:
        theirs = self.raw.get("quantization_config")
        method = theirs.get("quant_method") if isinstance(theirs, Mapping) else None
        if method is not None and "quantization" not in self.raw:
            raise self.fail(
                f"quant_method {method!r} is not supported; use the unquantised or an mlx-community checkpoint"
            )

    def rope(self, max_positions: int) -> tuple[Any, dict[str, Any] | None, int]:
        """Theta, scaling, and the context they allow; from the top level (transformers 4) or `rope_parameters` (transformers 5)."""
        parameters = self.raw.get("rope_parameters") or {}
        scaling = self.raw.get("rope_scaling") or parameters
        if not isinstance(parameters, Mapping) or not isinstance(scaling, Mapping):
            raise self.fail("rope_scaling and rope_parameters must be JSON objects")
        if nested := [key for key, value in (*parameters.items(), *scaling.items()) if isinstance(value, Mapping)]:
            raise self.fail(
                f"rope settings for each kind of layer ({nested[0]!r}) are not supported; one for all layers is"
            )
        theta = parameters.get(
            "rope_theta", scaling.get("rope_theta", self.raw.get("rope_theta", 10000.0))
        )  # the inner one wins
        if not _is_between(theta, 1, 1e15):
            raise self.fail(f"rope_theta is {theta!r}, not a number from 1 to 1e15")
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind not in ROPE_TYPES:
            raise self.fail(f"rope_type {kind!r} is not supported; tinymlx knows {', '.join(ROPE_TYPES)}")
        if scaling.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise self.fail(f"partial_rotary_factor {scaling['partial_rotary_factor']!r} is not supported; only 1.0 is")
        if kind == "default":
            return theta, None, max_positions
        names_original = "original_max_position_embeddings" in scaling
        scaling = {"original_max_position_embeddings": max_positions, **scaling, "rope_type": kind}
        for key in (*_ROPE_KEYS[kind], "original_max_position_embeddings"):
            value = scaling.get(key)
            if not _is_between(value, 1e-6, 1e9):
                raise self.fail(f"rope_scaling.{key} is {value!r}; {kind} needs a number from 1e-6 to 1e9")
        for key in ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"):
            value = scaling.get(key)
            if value and not _is_between(value, 1e-6, 1e9):
                raise self.fail(f"rope_scaling.{key} is {value!r}, not a number from 1e-6 to 1e9")
        if kind == "llama3" and scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
            raise self.fail("rope_scaling.high_freq_factor must be greater than low_freq_factor")
        stretched = (
            int(scaling["factor"] * scaling["original_max_position_embeddings"])
            if kind == "yarn" and names_original
            else 0
        )
        return theta, scaling, max(max_positions, stretched)

    def sliding_windows(self, layers: int) -> tuple[int | None, ...]:
        """`layer_types` decides where present; else, with `use_sliding_window`, layers from `max_window_layers` on."""
        window = self.raw.get("sliding_window")
        kinds = self.raw.get("layer_types")
        if kinds is not None and (not isinstance(kinds, list) or len(kinds) != layers):
            raise self.fail(f"layer_types must list {layers} layers")
        if not self.flag("use_sliding_window", False) or window is None:
            if kinds is not None and any(kind != "full_attention" for kind in kinds):
                raise self.fail(
                    "layer_types names sliding attention, but use_sliding_window or sliding_window is not set"
                )
            return (None,) * layers
        window = self.integer("sliding_window")
        if window < 1:
            raise self.fail(f"sliding_window is {window}; at least 1 is needed")
        if kinds is None:
            # transformers windows every layer of a mixture: Qwen3MoeConfig knows no max_window_layers.
            first = 0 if self.raw["model_type"] == "qwen3_moe" else self.integer("max_window_layers", 28)
            kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                raise self.fail(f"layer type {kind!r} is not supported; full_attention and sliding_attention are")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)

    def moe_layers(self, layers: int) -> tuple[bool, ...]:
        if self.raw.get("model_type") != "qwen3_moe" or not self.raw.get("num_experts", 0):
            return (False,) * layers
        step, dense = self.integer("decoder_sparse_step", 1), self.raw.get("mlp_only_layers") or []
        if step < 1 or not isinstance(dense, list):
            raise self.fail("decoder_sparse_step must be at least 1 and mlp_only_layers a list of layer numbers")
        return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))


def _is_between(value: Any, low: float, high: float) -> bool:
    """Whether it is a number (no bool, no NaN) in that range; of whole numbers too large for a float, too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def token_ids(value: Any, file: str) -> tuple[int, ...]:
    """eos_token_id as Hugging Face writes it: absent, one id, or a list. Raises UserError naming `file` for anything else."""
    values = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values):
        raise UserError(f"{file}: eos_token_id is {value!r}; a token id or a list of token ids is accepted")
    return tuple(values)
