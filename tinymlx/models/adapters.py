"""Adapters in mlx-lm's format: a folder with adapter_config.json and adapters.safetensors."""

from pathlib import Path

import mlx.core as mx

from tinymlx import ops
from tinymlx.errors import UserError
from tinymlx.hub.checkpoint import read_json
from tinymlx.hub.safetensors import SafetensorsFile
from tinymlx.models.config import ModelConfig
from tinymlx.models.finite import all_finite
from tinymlx.models.qwen3 import tensor_shapes
from tinymlx.ops.linear import Linear, Lora, Quantization


def load_adapter(
    folder: Path, config: ModelConfig, weights: dict[str, mx.array], quantization: dict[str, Quantization], dtype: mx.Dtype
) -> dict[str, Lora]:
    """Low-rank changes by module name. Raises UserError naming the file and what does not fit the model."""
    settings_file, tensors_file = folder / "adapter_config.json", folder / "adapters.safetensors"
    for file in (settings_file, tensors_file):
        if not file.is_file():
            raise UserError(f"{file} is missing; --adapter-path names a folder written by mlx-lm or tinymlx")
    settings = read_json(settings_file)
    kind = settings.get("fine_tune_type", "lora")
    if kind not in ("lora", "dora"):
        raise UserError(f"{settings_file}: fine_tune_type {kind!r} is not supported; lora and dora are")
    parameters = settings.get("lora_parameters", {})
    scale = parameters.get("scale", 20.0) if isinstance(parameters, dict) else None
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise UserError(f"{settings_file}: lora_parameters.scale is {scale!r}, not a number")

    file = SafetensorsFile(tensors_file)
    tensors = {name: file.read(name) for name in file.tensors}
    linears, _ = tensor_shapes(config)
    modules = sorted({name.rpartition(".")[0] for name in tensors})
    loras = {}
    for module in modules:
        shape = linears.get(module)
        if shape is None or len(shape) != 2 or module == "model.embed_tokens":
            raise UserError(f"{tensors_file}: {module} is not a linear layer of this model; the adapter belongs to another one")
        N, K = shape
        a, b, m = (tensors.pop(f"{module}.{part}", None) for part in ("lora_a", "lora_b", "m"))
        if a is None or b is None or a.ndim != 2 or a.shape[0] != K or b.shape != (a.shape[1], N):
            raise UserError(f"{tensors_file}: lora_a and lora_b of {module} must have shapes [{K}, r] and [r, {N}]")
        if not all(all_finite(x) for x in (a, b, m) if x is not None):
            raise UserError(f"{tensors_file}: the adapter of {module} contains NaN or infinity; train it again")
        a, b = a.T.astype(dtype), b.T.astype(dtype)
        column_scale = None
        if kind == "dora":
            if m is None or m.shape != (N,):
                raise UserError(f"{tensors_file}: the magnitude m of {module} must have shape [{N}]")
            get = weights.get
            base = Linear(weights[f"{module}.weight"], None, get(f"{module}.scales"), get(f"{module}.biases"), quantization.get(module))
            changed = ops.dequantize(base).astype(mx.float32) + scale * (b @ a).astype(mx.float32)
            column_scale = (m.astype(mx.float32) / mx.linalg.norm(changed, axis=1)).astype(dtype)
        loras[module] = Lora(mx.contiguous(a), mx.contiguous(b), float(scale), column_scale)
        mx.eval([x for x in loras[module] if isinstance(x, mx.array)])
    if tensors:
        raise UserError(f"{tensors_file}: tensor {sorted(tensors)[0]} is not part of a {kind} adapter")
    return loras
