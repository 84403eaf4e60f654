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

KINDS = {"lora": ("lora_a", "lora_b"), "dora": ("lora_a", "lora_b", "m")}


class Adapter:
    """An adapter's settings and header, checked against a model's shapes before any weight is read.

    Raises UserError naming the file and what does not fit the model.
    """

    def __init__(self, folder: Path, config: ModelConfig):
        settings_file, self.path = folder / "adapter_config.json", folder / "adapters.safetensors"
        for file in (settings_file, self.path):
            if not file.is_file():
                raise UserError(f"{file} is missing; --adapter-path names a folder written by mlx-lm")
        settings = read_json(settings_file)
        self.kind = settings.get("fine_tune_type", "lora")
        if self.kind not in KINDS:
            raise UserError(f"{settings_file}: fine_tune_type {self.kind!r} is not supported; lora and dora are")
        parameters = settings.get("lora_parameters", {})
        scale = parameters.get("scale", 20.0) if isinstance(parameters, dict) else None
        if isinstance(scale, bool) or not isinstance(scale, int | float) or not abs(scale) < 1e9:
            raise UserError(f"{settings_file}: lora_parameters.scale is {scale!r}, not a number")
        self.scale = float(scale)
        self._file = SafetensorsFile(self.path)
        self.modules = sorted({name.rpartition(".")[0] for name in self._file.tensors})
        if not self.modules:
            raise UserError(f"{self.path} holds no tensor; train the adapter again")
        linears, _ = tensor_shapes(config)
        for module in self.modules:
            self._check(module, linears.get(module))

    @property
    def nbytes(self) -> int:
        return sum(info.nbytes for info in self._file.tensors.values())

    def _check(self, module: str, shape: tuple[int, ...] | None) -> None:
        if module == "model.embed_tokens":
            raise UserError(f"{self.path}: an adapter of the embedding is not supported; train linear layers only")
        if shape is None:
            raise UserError(
                f"{self.path}: {module} is not a linear layer of this model; the adapter belongs to another one"
            )
        names = {name.rpartition(".")[2] for name in self._file.tensors if name.rpartition(".")[0] == module}
        if names != set(KINDS[self.kind]):
            raise UserError(
                f"{self.path}: {module} has {', '.join(sorted(names))}; a {self.kind} adapter has {', '.join(KINDS[self.kind])}"
            )
        if self.kind == "dora" and len(shape) != 2:
            raise UserError(f"{self.path}: dora on the experts {module} is not supported; lora is")
        a, b = (tuple(self._file.tensors[f"{module}.{part}"].shape) for part in ("lora_a", "lora_b"))
        rank = a[-2] if len(shape) == 3 and len(a) == 3 else a[-1] if a else 0
        *E, N, K = shape
        wanted = ((*E, rank, K), (*E, N, rank)) if E else ((K, rank), (rank, N))
        if (a, b) != wanted or rank < 1:
            raise UserError(
                f"{self.path}: lora_a and lora_b of {module} have shapes {list(a)} and {list(b)}; the model needs {wanted} of some rank"
            )
        if self.kind == "dora" and tuple(self._file.tensors[f"{module}.m"].shape) != (N,):
            raise UserError(f"{self.path}: the magnitude m of {module} must have shape [{N}]")

    def load(
        self, weights: dict[str, mx.array], quantization: dict[str, Quantization], dtype: mx.Dtype
    ) -> dict[str, Lora]:
        """The low-rank changes by module name, over a model's loaded `weights`. Raises UserError for NaN and infinity."""
        loras = {}
        for module in self.modules:
            parts = [self._file.read(f"{module}.{part}") for part in KINDS[self.kind]]
            if not all(all_finite(part) for part in parts):
                raise UserError(f"{self.path}: the adapter of {module} contains NaN or infinity; train it again")
            a, b = parts[:2] if parts[0].ndim == 3 else (parts[0].T, parts[1].T)
            a, b, column_scale = mx.contiguous(a.astype(dtype)), mx.contiguous(b.astype(dtype)), None
            if self.kind == "dora":
                get = weights.get
                base = Linear(
                    weights[f"{module}.weight"],
                    None,
                    get(f"{module}.scales"),
                    get(f"{module}.biases"),
                    quantization.get(module),
                )
                changed = ops.dequantize(base).astype(mx.float32) + self.scale * (b @ a).astype(mx.float32)
                column_scale = (parts[2].astype(mx.float32) / mx.linalg.norm(changed, axis=1)).astype(dtype)
            loras[module] = Lora(a, b, self.scale, column_scale)
            mx.eval([x for x in loras[module] if isinstance(x, mx.array)])
        return loras
