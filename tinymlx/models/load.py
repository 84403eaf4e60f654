"""From a checkpoint's tensors to a model, one tensor at a time, so that memory holds the weights and little more."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx

from tinymlx.errors import UserError
from tinymlx.hub.checkpoint import Checkpoint
from tinymlx.hub.progress import Progress
from tinymlx.models.adapters import Adapter
from tinymlx.models.config import ModelConfig, token_ids
from tinymlx.models.finite import all_finite
from tinymlx.models.qwen3 import Qwen3, tensor_shapes
from tinymlx.ops.linear import Quantization

ACCEPTED_BITS, ACCEPTED_GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)
_EXPERT = re.compile(r"(.+\.mlp)\.experts\.(\d+)\.((?:gate|up|down)_proj\..+)")
E8M0_NAN = 0xFF  # a power-of-two scale of mxfp4 that stands for no number
_FLOATS = {"BF16", "F16", "F32", "F64"}


def load_model(
    checkpoint: Checkpoint,
    *,
    dtype: mx.Dtype | None = None,
    adapter_path: str | Path | None = None,
    progress: Progress | None = None,
) -> Qwen3:
    """Read, check and cast every tensor of a checkpoint, after comparing its files with their checksums where it has any.

    dtype: of activations and dense weights; default float32 on a CPU, where MLX emulates narrower floats, else the checkpoint's own. Scales of quantised
    weights are only ever widened. Raises UserError naming file and tensor: missing, extra, mis-shaped, not finite, unknown packing.
    """
    config = read_config(checkpoint)
    dtype = dtype or default_dtype(checkpoint)
    quantization = quantized_modules(checkpoint, config)
    sources = match_tensors(checkpoint, config, quantization)
    adapter = Adapter(Path(adapter_path), config) if adapter_path is not None else None
    checkpoint.verify_checksums(progress)

    total = sum(checkpoint.tensors[name].nbytes for parts in sources.values() for name in parts)
    done = 0
    weights: dict[str, mx.array] = {}
    for name, parts in sources.items():
        arrays = []
        for part in parts:
            arrays.append(_cast(checkpoint, part, dtype))
            done += checkpoint.tensors[part].nbytes
            if progress:
                progress(done, total)
        weights[name] = arrays[0] if len(arrays) == 1 and not is_stacked(name, parts) else mx.stack(arrays)
        mx.eval(weights[name])
    loras = adapter.load(weights, quantization, dtype) if adapter is not None else {}
    return Qwen3(config, weights, quantization, loras)


def memory_request(checkpoint: Checkpoint, config: ModelConfig, dtype: mx.Dtype | None = None) -> dict[str, Any]:
    """What `tinymlx.memory.plan` asks of a model: bytes its weights will take here, and its shape."""
    dtype = dtype or default_dtype(checkpoint)
    quantization = quantized_modules(checkpoint, config)
    weights = 0
    for parts in match_tensors(checkpoint, config, quantization).values():
        for info in (checkpoint.tensors[part] for part in parts):
            stored = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}.get(info.dtype)
            held = stored and (max(stored, dtype.size) if info.name.endswith((".scales", ".biases")) else dtype.size)
            weights += info.nbytes * held // stored if stored else info.nbytes
    return dict(
        weight_bytes=weights,
        num_layers=config.num_hidden_layers,
        kv_heads=config.num_key_value_heads,
        num_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        hidden_size=config.hidden_size,
        intermediate_size=max(config.num_experts_per_tok * config.moe_intermediate_size, config.intermediate_size),
        vocab_size=config.vocab_size,
        kv_dtype_bytes=dtype.size,
        activation_dtype_bytes=dtype.size,
        quantized=bool(quantization),
    )


def read_config(checkpoint: Checkpoint) -> ModelConfig:
    """The model's configuration, with the end tokens of generation_config.json beside those of config.json."""
    config = ModelConfig.from_dict(checkpoint.config, file=str(_config_file(checkpoint)))
    more = token_ids(
        checkpoint.generation_config.get("eos_token_id"),
        str(_config_file(checkpoint).with_name("generation_config.json")),
    )
    return config.model_copy(update={"eos_token_ids": tuple(sorted({*config.eos_token_ids, *more}))})


def _config_file(checkpoint: Checkpoint) -> Path:
    path = checkpoint.source.path
    return path / "config.json" if path.is_dir() else path


def default_dtype(checkpoint: Checkpoint) -> mx.Dtype:
    """float32 on a CPU; elsewhere what most of the checkpoint is stored in (if quantised, its scales), or what a GGUF file was made for."""
    if mx.default_device() == mx.cpu:
        return mx.float32
    if checkpoint.source.format == "gguf":
        return getattr(mx, checkpoint.config["torch_dtype"])
    counts: dict[str, int] = {}
    for name, info in checkpoint.tensors.items():
        if info.dtype in _FLOATS:
            weight = info.nbytes * (1000 if name.endswith(".scales") else 1)
            counts[info.dtype] = counts.get(info.dtype, 0) + weight
    most = max(counts, key=counts.get, default="BF16")
    return {"BF16": mx.bfloat16, "F16": mx.float16}.get(most, mx.float32)


def quantized_modules(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, Quantization]:
    """How each linear module that comes with scales is packed, from `quantization` and its per-module overrides."""
    file = _config_file(checkpoint)
    raw = checkpoint.config.get("quantization") or checkpoint.config.get("quantization_config") or {}
    if not isinstance(raw, dict):
        raise UserError(f"{file}: quantization is not a JSON object")
    packed = {}
    for module in tensor_shapes(config)[0]:
        first = module.replace(".switch_mlp.", ".experts.0.")
        scales = next((m for m in (module, first) if f"{m}.scales" in checkpoint.tensors), None)
        override = next((raw[m] for m in (module, first) if m in raw), None)
        if scales is None:
            if isinstance(override, dict):
                raise UserError(
                    f"{file}: quantization names {module}, but its scales are missing; download the checkpoint again"
                )
            continue
        if override is False or not raw:
            raise UserError(
                f"{file}: {scales}.scales is present, but the config says that this module is not quantised"
            )
        # As in mlx-lm, an override stands alone: what it leaves out has its default, not the model's value.
        packed[module] = _quantization(override if isinstance(override, dict) else raw, module, file)
    return packed


def _quantization(raw: dict, module: str, file: Path) -> Quantization:
    mode = raw.get("mode", "affine")
    group_size, bits = raw.get("group_size", 32 if mode == "mxfp4" else 64), raw.get("bits", 4)
    whole = type(bits) is int and type(group_size) is int
    if whole and mode == "affine" and bits in ACCEPTED_BITS and group_size in ACCEPTED_GROUPS:
        return Quantization(group_size, bits, mode)
    if whole and mode == "mxfp4" and bits == 4 and group_size == 32:
        return Quantization(group_size, bits, mode)
    raise UserError(
        f"{file}: {module} is packed as mode {mode!r}, bits {bits!r}, group_size {group_size!r}; accepted are affine with bits "
        "2, 3, 4, 5, 6, 8 and groups 32, 64, 128, and mxfp4 with bits 4 and group 32"
    )


def _expected(config: ModelConfig, quantization: dict[str, Quantization]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and stored shape of every tensor the model needs."""
    linears, others = tensor_shapes(config)
    yield from others.items()
    for module, (*lead, N, K) in linears.items():
        packing = quantization.get(module)
        if packing is None:
            yield f"{module}.weight", (*lead, N, K)
            continue
        yield f"{module}.weight", (*lead, N, K * packing.bits // 32)
        yield f"{module}.scales", (*lead, N, K // packing.group_size)
        if packing.mode == "affine":
            yield f"{module}.biases", (*lead, N, K // packing.group_size)


def match_tensors(
    checkpoint: Checkpoint, config: ModelConfig, quantization: dict[str, Quantization]
) -> dict[str, list[str]]:
    """For each weight of the model the tensors of the checkpoint that make it up: one, or one an expert."""
    available: dict[str, list[str]] = {}
    experts: dict[str, dict[int, str]] = {}
    for name in checkpoint.tensors:
        match = _EXPERT.fullmatch(name)
        if match:
            experts.setdefault(f"{match[1]}.switch_mlp.{match[3]}", {})[int(match[2])] = name
        elif not name.endswith("rotary_emb.inv_freq") and not (
            config.tie_word_embeddings and name.startswith("lm_head.")
        ):
            available[name] = [name]
    folder = checkpoint.source.path
    for name, parts in experts.items():
        missing = next((i for i in range(config.num_experts) if i not in parts), None)
        if missing is not None:
            raise UserError(f"{folder}: expert {missing} of {name} is missing; download the checkpoint again")
        available[name] = [parts[i] for i in sorted(parts)]

    expected = dict(_expected(config, quantization))
    for name, shape in expected.items():
        if name not in available:
            raise UserError(f"{folder}: tensor {name} is missing; download the checkpoint again")
        for part in available[name]:
            info = checkpoint.tensors[part]
            stacked = is_stacked(name, available[name])
            wanted = shape[1:] if stacked else shape
            if tuple(info.shape) != wanted or (stacked and len(available[name]) != shape[0]):
                raise UserError(
                    f"{info.file}: tensor {part} has shape {list(info.shape)}; config.json asks for {list(wanted)}"
                )
            packed = name.endswith(".weight") and name.removesuffix(".weight") in quantization
            is_scale = name.endswith(".scales") and quantization[name.removesuffix(".scales")].mode == "mxfp4"
            accepted = {"U32"} if packed else {"U8"} if is_scale else _FLOATS
            if info.dtype not in accepted:
                raise UserError(
                    f"{info.file}: tensor {part} is {info.dtype}; accepted here: {', '.join(sorted(accepted))}"
                )
    extra = sorted(available.keys() - expected.keys())
    if extra:
        first = available[extra[0]][0]
        raise UserError(
            f"{checkpoint.tensors[first].file}: tensor {first} does not belong to a {config.model_type} of this config.json"
        )
    return {name: available[name] for name in expected}


def is_stacked(name: str, parts: list[str]) -> bool:
    """Whether experts come as tensors of their own, to be stacked."""
    return parts[0] != name


def _cast(checkpoint: Checkpoint, name: str, dtype: mx.Dtype) -> mx.array:
    array = checkpoint.read(name)
    if not mx.issubdtype(array.dtype, mx.floating):
        if array.dtype == mx.uint8 and mx.any(array == E8M0_NAN).item():
            raise UserError(
                f"{checkpoint.tensors[name].file}: tensor {name} has a scale that is NaN; download the file again"
            )
        return array
    if not all_finite(array):
        raise UserError(
            f"{checkpoint.tensors[name].file}: tensor {name} contains NaN or infinity; download the file again"
        )
    if name.endswith((".scales", ".biases")) and dtype != mx.float32:
        return array  # never narrowed: a float16 or float32 scale does not fit into bfloat16
    return array.astype(dtype)
