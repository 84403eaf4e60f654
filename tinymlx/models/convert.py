"""Quantise, dequantise or cast a checkpoint into a folder that mlx-lm and tinymlx load.

Tensor by tensor, without building the model: memory holds one shard of the output and the inputs of one tensor. Which
weights are quantised, and how, is what mlx_lm.convert does: every linear layer and embedding whose rows divide by the
group size; never norms and biases; the router of a mixture of experts at 8 bits; experts stacked under `switch_mlp`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from tinymlx.errors import UserError
from tinymlx.hub.checkpoint import Checkpoint, open_checkpoint
from tinymlx.hub.checksums import write_sums
from tinymlx.hub.progress import byte_bar
from tinymlx.hub.source import ModelSource
from tinymlx.hub.writer import Job, check_disk, copy_companions, new_folder, write_json, write_weights
from tinymlx.models.config import ModelConfig
from tinymlx.models.finite import all_finite
from tinymlx.models.load import (
    ACCEPTED_BITS,
    ACCEPTED_GROUPS,
    is_stacked,
    match_tensors,
    quantized_modules,
    read_config,
)
from tinymlx.models.qwen3 import tensor_shapes
from tinymlx.ops.linear import Quantization

MODES = {"affine": Quantization(64, 4, "affine"), "mxfp4": Quantization(32, 4, "mxfp4")}
RECIPES = {"mixed_2_6": (2, 6), "mixed_3_4": (3, 4), "mixed_3_6": (3, 6), "mixed_4_6": (4, 6)}
DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}
ROUTER = Quantization(64, 8, "affine")

_STORED = {
    "F64": mx.float64,
    "F32": mx.float32,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "U32": mx.uint32,
    "U8": mx.uint8,
}


@dataclass(frozen=True)
class Options:
    """What to do, under the names of mlx_lm.convert. Raises UserError for what does not go together."""

    quantize: bool = False
    q_bits: int | None = None
    q_group_size: int | None = None
    q_mode: str = "affine"
    quant_predicate: str | None = None
    """A recipe that gives some layers more bits than others: mixed_2_6, mixed_3_4, mixed_3_6, mixed_4_6."""
    dequantize: bool = False
    dtype: str | None = None
    """Of weights that are not quantised, and of scales; default the config's torch_dtype, and scales as they are."""

    def __post_init__(self):
        if self.quantize and self.dequantize:
            raise UserError("--quantize and --dequantize exclude each other; choose one")
        if not self.quantize:
            given = {
                "--q-bits": self.q_bits,
                "--q-group-size": self.q_group_size,
                "--quant-predicate": self.quant_predicate,
            }
            for flag, value in given.items():
                if value is not None:
                    raise UserError(f"{flag} needs -q; add -q to quantise")
            if self.q_mode != "affine":
                raise UserError("--q-mode needs -q; add -q to quantise")
        if self.q_mode not in MODES:
            raise UserError(f"--q-mode {self.q_mode} is not supported; {' and '.join(MODES)} are")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise UserError(f"--dtype {self.dtype} is not supported; {', '.join(DTYPES)} are")
        group_size, bits, mode = self.quantization
        if mode == "affine" and (bits not in ACCEPTED_BITS or group_size not in ACCEPTED_GROUPS):
            raise UserError(
                f"--q-bits {bits} with --q-group-size {group_size} is not supported; "
                "bits may be 2, 3, 4, 5, 6, 8 and groups 32, 64, 128"
            )
        if mode != "affine" and (group_size, bits) != MODES[mode][:2]:
            raise UserError(
                f"--q-mode {mode} goes with 4 bits and groups of 32 only; leave out --q-bits and --q-group-size"
            )
        if self.quant_predicate is not None:
            if self.quant_predicate not in RECIPES:
                raise UserError(f"--quant-predicate {self.quant_predicate} is not known; {', '.join(RECIPES)} are")
            if mode != "affine":
                raise UserError("--quant-predicate works with --q-mode affine only; leave out one of them")

    @property
    def quantization(self) -> Quantization:
        given = {"group_size": self.q_group_size, "bits": self.q_bits}
        return MODES[self.q_mode]._replace(**{key: value for key, value in given.items() if value is not None})


class Summary(NamedTuple):
    folder: Path
    nbytes: int
    """Of all tensors."""
    bits_per_weight: float


def convert(source: ModelSource, folder: Path, options: Options, *, progress: bool = True) -> Summary:
    """Write the converted model into `folder`, which must not exist or be empty; `progress` shows bars.

    The folder appears whole or not at all. Raises UserError naming the file, tensor or flag, and the next act.
    """
    with new_folder(folder) as unfinished:
        checkpoint = open_checkpoint(source)
        plan = make_plan(checkpoint, options)
        nbytes = sum(job.nbytes for job in plan.jobs)
        check_disk(folder, nbytes)
        with byte_bar("verifying", show=progress) as report:
            checkpoint.verify_checksums(report)
        write_json(unfinished / "config.json", plan.config)
        with byte_bar("converting", show=progress) as report:
            write_weights(unfinished, plan.jobs, plan.parameters, report)
        _write_companions(checkpoint, unfinished)
        with byte_bar("checksums", show=progress) as report:
            write_sums(unfinished, [path.name for path in unfinished.iterdir()], report)
    return Summary(folder, nbytes, 8 * nbytes / plan.parameters)


class Plan(NamedTuple):
    jobs: list[Job]
    config: dict
    parameters: int
    """Weights of the model, each counted once however it is packed."""


def make_plan(checkpoint: Checkpoint, options: Options) -> Plan:
    """What becomes of each tensor; reads headers only."""
    config = read_config(checkpoint)
    packed = quantized_modules(checkpoint, config)
    sources = match_tensors(checkpoint, config, packed)
    linears, others = tensor_shapes(config)
    reader = _Reader(checkpoint, sources, options)

    jobs, packed_after = [], {}
    for module, shape in linears.items():
        before = packed.get(module)
        after = before
        if before is not None and options.dequantize:
            after = None
        elif before is None and options.quantize:
            after = quantization_of(module, shape[-1], config, options)
        if after is not None:
            packed_after[module] = after
        jobs.append(reader.job(module, shape, before, after))
    if options.quantize and len(packed_after) == len(packed):
        if packed:
            raise UserError(
                f"{checkpoint.source.path} is quantised already; take the original, or --dequantize it first"
            )
        raise UserError(
            f"no weight of {checkpoint.source.path} has rows that divide by --q-group-size "
            f"{options.quantization.group_size}; take a smaller group"
        )
    if options.dequantize and not packed:
        raise UserError(f"{checkpoint.source.path} is not quantised; leave out --dequantize")
    jobs += [reader.dense(name, shape) for name, shape in others.items()]

    position = {name: i for i, name in enumerate(checkpoint.tensors)}
    jobs.sort(key=lambda job: position[sources[job.names[0]][0]])  # reads the files from front to back
    parameters = sum(prod(shape) for shapes in (linears, others) for shape in shapes.values())
    return Plan(jobs, _config(checkpoint, config, options, packed_after), parameters)


def quantization_of(module: str, columns: int, config: ModelConfig, options: Options) -> Quantization | None:
    """How mlx_lm.convert packs a linear layer or embedding with that many columns; None where it leaves it alone."""
    group_size, bits, mode = options.quantization
    if columns % group_size:
        return None
    if options.quant_predicate is not None:
        low, high = RECIPES[options.quant_predicate]
        return Quantization(group_size, high if _is_sensitive(module, config.num_hidden_layers) else low, mode)
    if config.num_experts and module.endswith("mlp.gate"):
        return ROUTER if columns % ROUTER.group_size == 0 else None
    return Quantization(group_size, bits, mode)


def _is_sensitive(module: str, layers: int) -> bool:
    """Whether a recipe gives the module its higher bits: the head, and v_proj and down_proj in some layers.

    Those are an eighth of the layers at either end and every third between: llama.cpp's choice for Q4_K_M.
    """
    if module == "lm_head":
        return True
    if "v_proj" not in module and "down_proj" not in module:
        return False
    layer, eighth = int(module.split(".")[2]), layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


class _Reader:
    """Makes the tensors of the output from those of the checkpoint."""

    def __init__(self, checkpoint: Checkpoint, sources: dict[str, list[str]], options: Options):
        self.checkpoint, self.sources, self.options = checkpoint, sources, options
        self.forced = DTYPES.get(options.dtype)
        self.dtype = self.forced or DTYPES.get(
            str(checkpoint.config.get("torch_dtype") or checkpoint.config.get("dtype"))
        )

    def stored(self, name: str) -> mx.Dtype:
        return _STORED[self.checkpoint.tensors[self.sources[name][0]].dtype]

    def target(self, stored: mx.Dtype) -> mx.Dtype:
        """Of a dense weight."""
        return self.dtype or (mx.float32 if stored == mx.float64 else stored)

    def job(self, module: str, shape: tuple[int, ...], before: Quantization | None, after: Quantization | None) -> Job:
        """A linear layer or embedding whose dense weight has that shape."""
        weight = f"{module}.weight"
        if before is not None and after is None:
            scales = self.stored(f"{module}.scales")
            dtype = self.dtype or (mx.bfloat16 if before.mode == "mxfp4" else scales)
            return _job({weight: (shape, dtype)}, partial(self.dequantized, module, before, dtype))
        if after is None:
            return self.dense(weight, shape)
        scale_dtype = mx.uint8 if after.mode == "mxfp4" else self.target(self.stored(weight))
        if before is not None and after.mode == "affine":
            scale_dtype = self.forced or self.stored(f"{module}.scales")
        *lead, columns = shape
        shapes = {weight: ((*lead, columns * after.bits // 32), mx.uint32)}
        scales = "scales", "biases"
        for part in scales[: 1 if after.mode == "mxfp4" else 2]:
            shapes[f"{module}.{part}"] = ((*lead, columns // after.group_size), scale_dtype)
        if before is not None:
            return _job(shapes, lambda: {name: self.copied(name, dtype) for name, (_, dtype) in shapes.items()})
        return _job(shapes, partial(self.quantized, module, after))

    def dense(self, name: str, shape: tuple[int, ...]) -> Job:
        dtype = self.target(self.stored(name))
        return _job({name: (shape, dtype)}, lambda: {name: self.copied(name, dtype)})

    def each(self, name: str, make: Callable[[str], mx.array]) -> mx.array:
        """A tensor, or the experts that make it up, each through `make`."""
        parts = self.sources[name]
        made = [make(part) for part in parts]
        mx.eval(made)
        return mx.stack(made) if is_stacked(name, parts) else made[0]

    def copied(self, name: str, dtype: mx.Dtype) -> mx.array:
        return self.each(name, lambda part: self.cast(part, dtype))

    def cast(self, part: str, dtype: mx.Dtype) -> mx.array:
        """One stored tensor in another float type, proven finite."""
        array = self.checkpoint.read(part)
        if not mx.issubdtype(array.dtype, mx.floating):
            return array
        file = self.checkpoint.tensors[part].file
        with mx.stream(mx.cpu if array.dtype == mx.float64 else mx.default_device()):
            result = array.astype(dtype)
            if all_finite(result):
                return result
            if all_finite(array):
                name = str(dtype).rpartition(".")[2]
                raise UserError(
                    f"{file}: tensor {part} has numbers too large for {name}; take --dtype bfloat16 or float32"
                )
        raise UserError(f"{file}: tensor {part} contains NaN or infinity; download the file again")

    def quantized(self, module: str, after: Quantization) -> dict[str, mx.array]:
        name = f"{module}.weight"
        parts = self.sources[name]
        made = []
        for part in parts:
            weight = self.cast(part, self.target(self.stored(name)))
            made.append(mx.quantize(weight, group_size=after.group_size, bits=after.bits, mode=after.mode))
            mx.eval(made[-1])
        arrays = [mx.stack(same) for same in zip(*made, strict=True)] if is_stacked(name, parts) else made[0]
        return {f"{module}.{part}": array for part, array in zip(("weight", "scales", "biases"), arrays, strict=False)}

    def dequantized(self, module: str, before: Quantization, dtype: mx.Dtype) -> dict[str, mx.array]:
        """mx.dequantize in the type of the scales; into another type through float32, so that nothing rounds twice."""
        names = {part: f"{module}.{part}" for part in ("weight", "scales", "biases")}
        packing = dict(zip(("group_size", "bits", "mode"), before, strict=True))
        made = []
        for index, part in enumerate(self.sources[names["weight"]]):
            weight = self.checkpoint.read(part)
            if before.mode == "mxfp4":
                scales = self.checkpoint.read(self.sources[names["scales"]][index])
                made.append(mx.dequantize(weight, scales, **packing, dtype=dtype))
            else:
                exact = dtype if dtype == self.stored(names["scales"]) else mx.float32
                scales, biases = (self.cast(self.sources[names[part]][index], exact) for part in ("scales", "biases"))
                made.append(mx.dequantize(weight, scales, biases, **packing).astype(dtype))
            if not all_finite(made[-1]):
                file = self.checkpoint.tensors[part].file
                name = str(dtype).rpartition(".")[2]
                raise UserError(
                    f"{file}: tensor {part} stands for numbers too large for {name}; take --dtype bfloat16 or float32"
                )
        stacked = is_stacked(names["weight"], self.sources[names["weight"]])
        return {names["weight"]: mx.stack(made) if stacked else made[0]}


def _job(outputs: dict[str, tuple[tuple[int, ...], mx.Dtype]], make: Callable[[], dict[str, mx.array]]) -> Job:
    return Job(tuple(outputs), sum(prod(shape) * dtype.size for shape, dtype in outputs.values()), make)


def _config(checkpoint: Checkpoint, config: ModelConfig, options: Options, packed: dict[str, Quantization]) -> dict:
    """config.json of the output, keys sorted as mlx-lm sorts them.

    Keys that may be left out are filled in where mlx-lm demands them or has another default than Hugging Face.
    """
    raw = {key: value for key, value in checkpoint.config.items() if not key.startswith("_")}
    old = raw.pop("quantization", None) or raw.pop("quantization_config", None)
    raw.pop("quantization_config", None)
    filled = [
        "tie_word_embeddings",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
    ]
    for key in filled:
        if raw.get(key) is None:
            raw[key] = getattr(config, key)
    if config.num_experts:
        for key, default in {
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": config.norm_topk_prob,
        }.items():
            if raw.get(key) is None:
                raw[key] = default
    if options.dtype is not None:
        raw["dtype" if "dtype" in raw and "torch_dtype" not in raw else "torch_dtype"] = options.dtype
    if packed:
        common = options.quantization
        if old:
            common = Quantization(old.get("group_size", 64), old.get("bits", 4), old.get("mode", "affine"))
        quantization = dict(common._asdict())
        for module, packing in packed.items():
            if packing != common:
                quantization[module] = dict(packing._asdict())
        raw["quantization"] = raw["quantization_config"] = quantization
    return dict(sorted(raw.items()))


def _write_companions(checkpoint: Checkpoint, folder: Path) -> None:
    source = checkpoint.source
    if source.format != "gguf":
        copy_companions(source.path, folder)
        return
    from tinymlx.hub.tokenizer import load_tokenizer

    load_tokenizer(source).save(folder)
    if checkpoint.generation_config:
        write_json(folder / "generation_config.json", checkpoint.generation_config)
