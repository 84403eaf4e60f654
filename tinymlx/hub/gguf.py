"""A GGUF file as a checkpoint: Hugging Face tensor names, and quantised tensors as MLX affine triplets, without loss.

GGUF packs a row in blocks of 32 with float16 numbers d (and m); MLX stores codes, scales and biases apart and computes
`w = scale * code + bias` per group of 32. So

    Q4_0   w = d * (q - 8)      ->  scale d, bias -8 d,   codes q        (4 bits)
    Q4_1   w = d * q + m        ->  scale d, bias m,      codes q        (4 bits)
    Q8_0   w = d * q, q signed  ->  scale d, bias -128 d, codes q + 128  (8 bits)

are the same numbers: multiplying a float16 by a power of two only moves its exponent. Where that would overflow, scales
and biases are float32. Sources: ggml's quantize_row_*_ref for the blocks; `mlx.core.dequantize` for the triplets.
"""

import re
from collections import Counter
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from tinymlx.errors import UserError
from tinymlx.hub.checkpoint import Checkpoint, TensorInfo
from tinymlx.hub.gguf_config import architecture_of, config_of, generation_config_of
from tinymlx.hub.gguf_format import GGUFFile, GGUFTensor, read_gguf
from tinymlx.hub.source import ModelSource

GROUP_SIZE = 32
BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}

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
        """Raises UserError for a damaged file, an unsupported architecture or setting, or a tensor without a place."""
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
        self.config["torch_dtype"] = _float_dtype(self._file)
        quantization = _quantization(modules)
        if quantization is not None:
            self.config["quantization"] = quantization

    def read(self, name: str) -> mx.array:
        """The tensor `name`, copied out of the map, in the dtype that `tensors` names.

        One exception: scales and biases are float32 where -8 d or -128 d does not fit float16. Raises KeyError for an
        unknown name, UserError for a NaN or infinite scale.
        """
        part = self._parts[name]
        tensor = part.tensor
        raw = self._file.bytes_of(tensor)
        if tensor.type.name in BITS:
            blocks = raw.reshape(*tensor.shape[:-1], tensor.shape[-1] // GROUP_SIZE, tensor.type.nbytes)
            array = (
                _words(blocks, tensor.type.name) if part.array == "weight" else self._affine(blocks, tensor, part.array)
            )
        else:
            dtype = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[tensor.type.name]
            array = raw.view(dtype).reshape(tensor.shape)
        if part.heads is not None:
            array = _unpermute(array, part.heads)
        result = mx.array(array)
        return result.view(mx.bfloat16) if tensor.type.name == "BF16" else result

    def _place(self, tensor: GGUFTensor) -> tuple[str, str]:
        place = hugging_face_name(tensor.name)
        if place is None:
            raise UserError(
                f"{self.source.path}: tensor {tensor.name!r} has no place in a {architecture_of(self._file)} model"
            )
        if tensor.type.name in BITS and (len(tensor.shape) == 1 or place[1] == "bias"):
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
        if tensor.type.name not in BITS:
            arrays = {kind: (kind, tensor.type.name, tensor.shape, tensor.nbytes)}
        else:
            bits, columns = BITS[tensor.type.name], tensor.shape[-1]
            words = (*tensor.shape[:-1], columns * bits // 32)
            groups = (*tensor.shape[:-1], columns // GROUP_SIZE)
            arrays = {
                "weight": ("weight", "U32", words, int(np.prod(words)) * 4),
                "scales": ("scales", "F16", groups, int(np.prod(groups)) * 2),
                "biases": ("biases", "F16", groups, int(np.prod(groups)) * 2),
            }
        for suffix, (array, dtype, shape, nbytes) in arrays.items():
            name = f"{module}.{suffix}"
            self.tensors[name] = TensorInfo(name, dtype, shape, nbytes, self.source.path)
            self._parts[name] = _Part(tensor, array, heads)

    def _affine(self, blocks: np.ndarray, tensor: GGUFTensor, array: str) -> np.ndarray:
        # blocks [..., groups, block bytes] -> scales or biases [..., groups]
        scales = _halves(blocks, 0)
        if tensor.type.name == "Q4_1":
            biases = _halves(blocks, 2)
            largest = np.maximum(np.abs(scales).max(), np.abs(biases).max())
        else:
            # float32: so that the product exists before it is known whether it fits float16
            biases = scales.astype(np.float32) * np.float32(-8.0 if tensor.type.name == "Q4_0" else -128.0)
            largest = np.abs(biases).max()
        if not np.isfinite(largest):  # NaN, too: numpy's max and maximum keep it
            raise UserError(
                f"{self.source.path}: tensor {tensor.name} has a NaN or infinite scale; download the file again"
            )
        fits = largest <= np.finfo(np.float16).max
        return (scales if array == "scales" else biases).astype(np.float16 if fits else np.float32)


def _halves(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of each block: [..., groups, bytes] -> [..., groups]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0]


_CHUNK = 8192  # blocks worked on at a time: what fits a core's cache


def _words(blocks: np.ndarray, kind: str) -> np.ndarray:
    """The codes of each block in MLX's order: element i of a word in bits 4i (or 8i). [..., groups, bytes] -> uint32
    [..., words].

    GGUF's byte j of a 4-bit block holds element j in its low half and element j + 16 in its high half:

        GGUF  e0|e16  e1|e17  e2|e18 ...  ->  MLX  e0|e1  e2|e3 ... e14|e15  e16|e17 ...
    """
    if kind == "Q8_0":
        packed = blocks[..., 2:] ^ np.uint8(0x80)  # signed q as q + 128
    else:
        flat = blocks.reshape(-1, blocks.shape[-1])
        packed = np.empty((len(flat), 2, 8), np.uint8)
        for start in range(0, len(flat), _CHUNK):
            # Two bytes at a time, elements j and j + 1 (low halves), j + 16 and j + 17 (high halves): 0x_b_a and 0xd_c_
            pairs = np.ascontiguousarray(flat[start : start + _CHUNK, -16:]).view("<u2")
            packed[start : start + _CHUNK, 0] = (pairs & 0x0F) | ((pairs >> 4) & 0xF0)
            packed[start : start + _CHUNK, 1] = ((pairs >> 4) & 0x0F) | ((pairs >> 8) & 0xF0)
    return np.ascontiguousarray(packed).reshape(*blocks.shape[:-2], -1).view("<u4")


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
