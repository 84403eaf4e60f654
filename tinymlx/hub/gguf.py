"""A GGUF file as a checkpoint: Hugging Face tensor names, and quantised tensors as MLX affine triplets where that loses nothing."""

import importlib.util
import re
from collections import Counter
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from tinymlx.errors import UserError
from tinymlx.hub import gguf_blocks
from tinymlx.hub.checkpoint import Checkpoint, TensorInfo
from tinymlx.hub.gguf_blocks import BITS, GROUP_SIZE, PLAIN, WIDE
from tinymlx.hub.gguf_config import architecture_of, config_of, generation_config_of
from tinymlx.hub.gguf_format import GGUFFile, GGUFTensor, read_gguf
from tinymlx.hub.source import ModelSource

_OUTSIDE_BLOCKS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_BLOCKS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",  # the router of a mixture of experts
    "ffn_gate_exps": "mlp.switch_mlp.gate_proj",  # all experts of a layer in one tensor [experts, out, in]
    "ffn_up_exps": "mlp.switch_mlp.up_proj",
    "ffn_down_exps": "mlp.switch_mlp.down_proj",
}


def hugging_face_name(name: str) -> tuple[str, str] | None:
    """(module, "weight" or "bias") of a GGUF tensor name; None where there is no such module.

    >>> hugging_face_name("blk.3.attn_q.weight")
    ('model.layers.3.self_attn.q_proj', 'weight')
    """
    match = re.fullmatch(r"(?:blk\.(0|[1-9][0-9]*)\.)?([a-z_]+)\.(weight|bias)", name)
    if match is None:
        return None
    block, part, kind = match.groups()
    module = (_OUTSIDE_BLOCKS if block is None else _IN_BLOCKS).get(part)
    if module is None:
        return None
    return (module if block is None else f"model.layers.{block}.{module}"), kind


class _Part(NamedTuple):
    """Where a tensor of the checkpoint comes from: a GGUF tensor, and of its arrays "weight", "scales" or "biases"."""

    tensor: GGUFTensor
    array: str
    heads: int | None  # rows are interleaved per head (see `_unpermute`)


class GGUFCheckpoint(Checkpoint):
    """A GGUF file behind the interface of `Checkpoint`. The header is checked first; payload is read by `read` only."""

    def __init__(self, source: ModelSource):
        """Raises UserError for a damaged file, an unsupported architecture or setting, a tensor without a place, or one whose type
        needs the `gguf` package where that is absent.
        """
        self.source = source
        self._file = read_gguf(source.path)
        self.config = config_of(self._file)
        self.generation_config = generation_config_of(self._file)
        self.tensors: dict[str, TensorInfo] = {}
        self._parts: dict[str, _Part] = {}
        modules: dict[str, GGUFTensor] = {}
        for tensor in self._file.tensors.values():
            if tensor.name == "rope_freqs.weight":
                continue  # became config["rope_scaling"]
            module, kind = self._place(tensor)
            if kind == "weight" and "norm" not in module:
                modules[module] = tensor
            self._add(module, kind, tensor)
        if importlib.util.find_spec("gguf") is None:
            for tensor in self._file.tensors.values():
                if tensor.type.name in PLAIN:
                    raise UserError(
                        f"{source.path}: tensor {tensor.name} {gguf_blocks.needs_package(tensor.type.name)}"
                    )
        self.config["torch_dtype"] = _float_dtype(self._file)
        quantization = _quantization(modules)
        if quantization is not None:
            self.config["quantization"] = quantization

    def read(self, name: str) -> mx.array:
        """The tensor `name`, copied out of the map, in the dtype that `tensors` names.

        One exception: scales and biases are float32 where they do not fit float16. Raises KeyError for an unknown name, UserError
        for a NaN or infinite scale.
        """
        part = self._parts[name]
        tensor = part.tensor
        raw = self._file.bytes_of(tensor)
        kind, shape = tensor.type.name, tensor.shape
        try:
            if kind in BITS:
                blocks = raw.reshape(*shape[:-1], shape[-1] // tensor.type.block, tensor.type.nbytes)
                if part.array == "weight":
                    array = gguf_blocks.words(blocks, kind)
                else:
                    array = gguf_blocks.scales_and_biases(blocks, kind)[part.array == "biases"]
            elif kind in PLAIN:
                array = gguf_blocks.plain(raw, kind, shape)
            else:
                array = raw.view({"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[kind]).reshape(shape)
        except UserError as error:
            raise UserError(f"{self.source.path}: tensor {tensor.name} {error}") from None
        if part.heads is not None:
            array = _unpermute(array, part.heads)
        result = mx.array(array)
        return result.view(mx.bfloat16) if kind == "BF16" else result

    def _place(self, tensor: GGUFTensor) -> tuple[str, str]:
        place = hugging_face_name(tensor.name)
        if place is None:
            raise UserError(
                f"{self.source.path}: tensor {tensor.name!r} has no place in a {architecture_of(self._file)} model"
            )
        if tensor.type.block > 1 and (len(tensor.shape) == 1 or place[1] == "bias"):
            raise UserError(
                f"{self.source.path}: tensor {tensor.name} is a vector of type {tensor.type.name}; take another file"
            )
        return place

    def _add(self, module: str, kind: str, tensor: GGUFTensor) -> None:
        heads = None
        if architecture_of(self._file) == "llama" and module.endswith(("self_attn.q_proj", "self_attn.k_proj")):
            heads = self.config["num_attention_heads" if module.endswith("q_proj") else "num_key_value_heads"]
            if tensor.shape[0] % (2 * heads):
                raise UserError(
                    f"{self.source.path}: tensor {tensor.name} has {tensor.shape[0]} rows for {heads} heads"
                )
        if tensor.type.name in PLAIN:
            arrays = {kind: (kind, "F32", tensor.shape, int(np.prod(tensor.shape)) * 4)}
        elif tensor.type.name not in BITS:
            arrays = {kind: (kind, tensor.type.name, tensor.shape, tensor.nbytes)}
        else:
            bits, columns = BITS[tensor.type.name], tensor.shape[-1]
            words = (*tensor.shape[:-1], columns * bits // 32)
            groups = (*tensor.shape[:-1], columns // GROUP_SIZE)
            dtype, size = ("F32", 4) if tensor.type.name in WIDE else ("F16", 2)
            arrays = {
                "weight": ("weight", "U32", words, int(np.prod(words)) * 4),
                "scales": ("scales", dtype, groups, int(np.prod(groups)) * size),
                "biases": ("biases", dtype, groups, int(np.prod(groups)) * size),
            }
        for suffix, (array, dtype, shape, nbytes) in arrays.items():
            name = f"{module}.{suffix}"
            self.tensors[name] = TensorInfo(name, dtype, shape, nbytes, self.source.path)
            self._parts[name] = _Part(tensor, array, heads)


def _unpermute(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k from GGUF's order back to Hugging Face's, per head: x0 x0' x1 x1' ... -> x0 x1 ... x0' x1' ...

    llama.cpp rotates neighbouring pairs for the architecture `llama` and reorders rows to suit; a row's blocks stay
    whole, so packed words, scales and biases move like plain weights.
    """
    pairs = array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)


def _float_dtype(file: GGUFFile) -> str:
    # What most weights are (scales, for quantised ones): what the model is computed in on a GPU unless the user says
    # otherwise.
    sizes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sizes[{"F32": "float32", "BF16": "bfloat16"}.get(tensor.type.name, "float16")] += tensor.nbytes
    return sizes.most_common(1)[0][0]


def _quantization(modules: dict[str, GGUFTensor]) -> dict[str, Any] | None:
    """mlx-community's "quantization" entry: the commonest bit width as the default, every other module by name."""
    counts = Counter(BITS[tensor.type.name] for tensor in modules.values() if tensor.type.name in BITS)
    if not counts:
        return None
    default = counts.most_common(1)[0][0]
    entry: dict[str, Any] = {"group_size": GROUP_SIZE, "bits": default, "mode": "affine"}
    for module, tensor in modules.items():
        bits = BITS.get(tensor.type.name)
        if bits is None:
            entry[module] = False
        elif bits != default:
            entry[module] = {"group_size": GROUP_SIZE, "bits": bits, "mode": "affine"}
    return entry
