"""The GGUF container: metadata and tensor table, validated in full before any payload is read.

    read_gguf(Path("SmolLM2.gguf")).metadata["general.architecture"] -> "llama"

Layout (little-endian): magic, version, number of tensors, number of metadata pairs, the pairs, the tensor table,
padding to the alignment, tensor data. Source: the GGUF specification in the ggml repository (docs/gguf.md), versions 2
and 3.
"""

import functools
import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from tinymlx.errors import UserError

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4


class BlockType(NamedTuple):
    """How a tensor type packs a row: `block` elements in `nbytes` bytes."""

    name: str
    block: int
    nbytes: int


# What this package reads; the numbers are those of enum ggml_type.
READABLE_TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    20: BlockType("IQ4_NL", 32, 18),
    23: BlockType("IQ4_XS", 256, 136),
    30: BlockType("BF16", 1, 2),
}
# Types that exist but are not read: known by name only, so that a refusal can say which one it met.
OTHER_TYPES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
    40: "NVFP4",
}  # fmt: skip

# Metadata value types with a fixed size: number -> struct / numpy letter.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

_SMALLEST_PAIR = 8 + 4 + 1  # empty key, type, one-byte value
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8  # empty name, one dimension, type, offset


class GGUFTensor(NamedTuple):
    """A row of the tensor table. `shape` is row-major (GGUF stores it reversed), `offset` is from the file's start."""

    name: str
    type: BlockType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class GGUFFile:
    """A memory-mapped GGUF file. The mapping lives as long as the object or any array made from it."""

    def __init__(self, path: Path, buffer: mmap.mmap, metadata: dict[str, Any], tensors: dict[str, GGUFTensor]):
        self.path = path
        self.metadata = metadata  # scalars and strings as Python values; arrays as list[str] or numpy arrays
        self.tensors = tensors
        self._buffer = buffer

    def bytes_of(self, tensor: GGUFTensor) -> np.ndarray:
        """The tensor's bytes as uint8 [nbytes]: a read-only view of the map, nothing is copied."""
        return np.frombuffer(self._buffer, np.uint8, tensor.nbytes, tensor.offset)


def read_gguf(path: Path) -> GGUFFile:
    """Map `path` and validate everything before the tensor data.

    The last file read is remembered (until it changes on disk), because the checkpoint and the tokenizer both ask for
    it. Raises UserError naming the file and what is wrong: not GGUF, another version or byte order, damaged or
    truncated header, duplicate key or tensor, unreadable tensor type (with the tensor), data outside the file, or one
    part of a split model.
    """
    try:
        status = path.stat()
        return _read_gguf(path, status.st_ino, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


@functools.lru_cache(maxsize=1)
def _read_gguf(path: Path, inode: int, size: int, mtime_ns: int) -> GGUFFile:
    if size < 24:
        raise UserError(f"{path}: {size} bytes are too few for a GGUF file; download it again")
    with open(path, "rb") as file:
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = _Reader(path, buffer)
    num_tensors, num_pairs = reader.preamble()
    metadata = reader.metadata(num_pairs)
    parts = metadata.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise UserError(
            f"{path}: is one of {parts} parts; join them with `llama-gguf-split --merge` and give the result"
        )
    return GGUFFile(path, buffer, metadata, reader.tensor_table(num_tensors, metadata))


class _Reader:
    """A cursor over the header. Every count is compared with the bytes that are left before anything is made of it."""

    def __init__(self, path: Path, buffer: mmap.mmap):
        self.path, self.buffer, self.size, self.position = path, buffer, len(buffer), 0

    def fail(self, what: str) -> NoReturn:
        raise UserError(f"{self.path}: {what}; the file is damaged or not downloaded whole")

    def need(self, nbytes: int, what: str) -> None:
        if nbytes > self.size - self.position:
            self.fail(f"{what} needs {nbytes} bytes at byte {self.position}, but the file has only {self.size}")

    def number(self, letter: str, what: str):
        layout = struct.Struct("<" + letter)
        self.need(layout.size, what)
        (value,) = layout.unpack_from(self.buffer, self.position)
        self.position += layout.size
        return value

    def string(self, what: str) -> str:
        length = self.number("Q", f"the length of {what}")
        self.need(length, what)
        raw = self.buffer[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8")

    def preamble(self) -> tuple[int, int]:
        magic = bytes(self.buffer[:4])
        if magic != MAGIC:
            raise UserError(f"{self.path}: not a GGUF file (it begins with {magic!r}, not {MAGIC!r})")
        self.position = 4
        version = self.number("I", "the version")
        if version in (2 << 24, 3 << 24):
            raise UserError(
                f"{self.path}: big-endian GGUF is not supported; convert the model on a little-endian machine"
            )
        if version not in (2, 3):
            raise UserError(
                f"{self.path}: GGUF version {version} is not supported, only 2 and 3; convert the model again"
            )
        num_tensors, num_pairs = self.number("Q", "the tensor count"), self.number("Q", "the metadata count")
        what = f"a header of {num_pairs} metadata entries and {num_tensors} tensors"
        self.need(num_pairs * _SMALLEST_PAIR + num_tensors * _SMALLEST_TENSOR, what)
        return num_tensors, num_pairs

    def metadata(self, count: int) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        for index in range(count):
            key = self.string(f"metadata key {index}")
            if key in pairs:
                self.fail(f"metadata key {key!r} appears twice")
            pairs[key] = self.value(self.number("I", f"the type of {key!r}"), key)
        return pairs

    def value(self, kind: int, key: str):
        if kind == _STRING:
            return self.string(f"the value of {key!r}")
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _SCALARS:
            self.fail(f"metadata key {key!r} has the unknown value type {kind}")
        return self.number(_SCALARS[kind], f"the value of {key!r}")

    def array(self, key: str):
        kind = self.number("I", f"the element type of {key!r}")
        count = self.number("Q", f"the length of {key!r}")
        if kind == _STRING:
            return self.strings(count, key)
        if kind not in _SCALARS:
            nested = "nested arrays, which are not supported" if kind == _ARRAY else f"the unknown element type {kind}"
            self.fail(f"metadata key {key!r} has {nested}")
        dtype = np.dtype(_SCALARS[kind]).newbyteorder("<")
        self.need(count * dtype.itemsize, f"array {key!r} of {count} elements")
        values = np.frombuffer(self.buffer, dtype, count, self.position).copy()
        self.position += count * dtype.itemsize
        return values

    def strings(self, count: int, key: str) -> list[str]:
        # A vocabulary has 150,000 tokens and as many merges: one plain loop, no call per element but these three.
        self.need(count * 8, f"array {key!r} of {count} strings")
        buffer, size, position = self.buffer, self.size, self.position
        length_at, values = struct.Struct("<Q").unpack_from, []
        for index in range(count):
            if position + 8 > size:
                self.fail(f"array {key!r} ends after {index} of {count} strings")
            end = position + 8 + length_at(buffer, position)[0]
            if end > size:
                self.fail(f"string {index} of array {key!r} runs past the end of the file")
            try:
                values.append(buffer[position + 8 : end].decode("utf-8"))
            except UnicodeDecodeError:
                self.fail(f"string {index} of array {key!r} is not UTF-8")
            position = end
        self.position = position
        return values

    def tensor_table(self, count: int, metadata: dict[str, Any]) -> dict[str, GGUFTensor]:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
            self.fail(f"general.alignment is {alignment!r}, which is not a power of two from 8 up")
        rows: dict[str, tuple[BlockType, tuple[int, ...], int]] = {}
        for index in range(count):
            name = self.string(f"the name of tensor {index}")
            if name in rows:
                self.fail(f"tensor {name!r} appears twice")
            rows[name] = self.tensor_row(name)
        data_start = -(-self.position // alignment) * alignment
        tensors = {}
        for name, (block_type, shape, offset) in rows.items():
            nbytes = math.prod(shape) // block_type.block * block_type.nbytes
            if offset % alignment:
                self.fail(f"tensor {name!r} begins at offset {offset}, which is not a multiple of {alignment}")
            end = data_start + offset + nbytes
            if end > self.size:
                self.fail(f"tensor {name!r} ends at byte {end}, but the file has only {self.size}")
            tensors[name] = GGUFTensor(name, block_type, shape, data_start + offset, nbytes)
        by_offset = sorted(tensors.values(), key=lambda tensor: tensor.offset)
        for before, after in zip(by_offset, by_offset[1:], strict=False):
            if before.offset + before.nbytes > after.offset:
                self.fail(f"tensors {before.name!r} and {after.name!r} overlap")
        return tensors

    def tensor_row(self, name: str) -> tuple[BlockType, tuple[int, ...], int]:
        num_dims = self.number("I", f"the dimensions of {name!r}")
        if not 1 <= num_dims <= MAX_DIMENSIONS:
            self.fail(f"tensor {name!r} has {num_dims} dimensions, not 1 to {MAX_DIMENSIONS}")
        shape = tuple(self.number("Q", f"the shape of {name!r}") for _ in range(num_dims))[::-1]
        kind = self.number("I", f"the type of {name!r}")
        offset = self.number("Q", f"the offset of {name!r}")
        if kind not in READABLE_TYPES:
            accepted = ", ".join(block_type.name for block_type in READABLE_TYPES.values())
            known = OTHER_TYPES.get(kind, f"number {kind}")
            raise UserError(f"{self.path}: tensor {name!r} has the type {known}; take a file with only {accepted}")
        block_type = READABLE_TYPES[kind]
        if 0 in shape or shape[-1] % block_type.block:
            self.fail(f"tensor {name!r} of type {block_type.name} has the shape {list(shape)}")
        return block_type, shape, offset
