"""Reading .safetensors files through a memory map, with the whole header checked before any tensor is read.

Format (https://github.com/huggingface/safetensors#format): 8 bytes little-endian header length N, N bytes of JSON
`{"<tensor>": {"dtype": "F16", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {...}}`, then the
payload, which the tensors cover without gap or overlap.
"""

import json
import math
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tinymlx.errors import UserError

if TYPE_CHECKING:
    import mlx.core as mx


class TensorInfo(NamedTuple):
    """What a header says of a tensor. dtype: as safetensors spells it ("BF16", "F16", "F32", "U32", "U8", ...)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: Path


# dtype -> (bytes an element, the type of NumPy and MLX that holds its bits, the MLX type they are viewed as).
# MLX has no 8-bit floats: those arrive as their raw bytes.
_DTYPES = {
    "BOOL": (1, "bool_", "bool_"),
    "U8": (1, "uint8", "uint8"),
    "I8": (1, "int8", "int8"),
    "F8_E4M3": (1, "uint8", "uint8"),
    "F8_E5M2": (1, "uint8", "uint8"),
    "F8_E8M0": (1, "uint8", "uint8"),
    "U16": (2, "uint16", "uint16"),
    "I16": (2, "int16", "int16"),
    "F16": (2, "float16", "float16"),
    "BF16": (2, "uint16", "bfloat16"),
    "U32": (4, "uint32", "uint32"),
    "I32": (4, "int32", "int32"),
    "F32": (4, "float32", "float32"),
    "U64": (8, "uint64", "uint64"),
    "I64": (8, "int64", "int64"),
    "F64": (8, "float64", "float64"),
}
_MAX_HEADER = 100_000_000  # the format's own limit
_MAX_DIM = 2**31 - 1  # MLX counts a dimension in 32 bits
_MAX_NDIM = 16
_AGAIN = "download the file again"


class SafetensorsFile:
    """One file's header, checked; `tensors` in the order of the payload.

    Raises UserError naming file and tensor. A file that is replaced after this is found out by `read`.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            with open(path, "rb") as file:
                self._identity = _identity(file.fileno())
                size = self._identity[0]
                header = self._read_header(file, size)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
        self.metadata, self.tensors, self._offsets = self._check(header, size)

    def _fail(self, what: str) -> UserError:
        return UserError(f"{self.path}: {what}; {_AGAIN}")

    def _read_header(self, file, size: int) -> dict:
        if size == 0:
            raise self._fail("the file is empty")
        if size < 8:
            raise self._fail(f"truncated: {size} bytes, less than a header")
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= _MAX_HEADER:
            raise self._fail(f"not a safetensors file: header length {length}")
        if 8 + length > size:
            raise self._fail(f"truncated: {size} bytes, but the header alone takes {8 + length}")
        self._payload = 8 + length
        try:
            header = json.loads(
                file.read(length).decode("utf-8"), object_pairs_hook=self._object, parse_constant=_refuse
            )
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
            raise self._fail(f"the header is not JSON ({error})") from None
        if not isinstance(header, dict):
            raise self._fail("the header is not a JSON object")
        return header

    def _object(self, pairs: list[tuple[str, object]]) -> dict:
        unique = dict(pairs)
        if len(unique) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in unique if names.count(name) > 1)
            raise self._fail(f"{shown(twice)} occurs twice in the header")
        return unique

    def _check(self, header: dict, size: int) -> tuple[dict, dict[str, TensorInfo], dict[str, int]]:
        metadata = header.pop("__metadata__", None) or {}  # MLX writes null where there is none
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise self._fail("__metadata__ is not an object of strings")
        spans = []
        for name, entry in header.items():
            begin, end, info = self._check_entry(name, entry)
            spans.append((begin, end, info))
        spans.sort(key=lambda span: span[:2])

        position, previous = 0, None
        for begin, end, info in spans:
            if begin != position:
                what = "overlaps" if begin < position else "leaves a hole after"
                raise self._fail(f"tensor {shown(info.name)} {what} {shown(previous) if previous else 'the header'}")
            position, previous = end, info.name
        held = size - self._payload
        if held < position:
            cut = next(info.name for _, end, info in spans if end > held)
            raise self._fail(
                f"truncated: {size} bytes instead of {self._payload + position}; tensor {shown(cut)} is cut off"
            )
        if held > position:
            raise self._fail(f"{held - position} bytes follow the last tensor")
        return metadata, {info.name: info for _, _, info in spans}, {info.name: begin for begin, _, info in spans}

    def _check_entry(self, name: str, entry: object) -> tuple[int, int, TensorInfo]:
        def fail(what: str) -> UserError:
            return self._fail(f"tensor {shown(name)}: {what}")

        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
            raise fail("the header gives no dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise UserError(
                f"{self.path}: tensor {shown(name)}: dtype {shown(str(dtype))} is not supported; take another file"
            )
        if (
            not isinstance(shape, list)
            or len(shape) > _MAX_NDIM
            or not all(_is_count(n) and n <= _MAX_DIM for n in shape)
        ):
            raise fail("shape is not a list of sizes")
        if (
            not isinstance(offsets, list)
            or len(offsets) != 2
            or not all(map(_is_count, offsets))
            or offsets[0] > offsets[1]
        ):
            raise fail("data_offsets are not [begin, end]")
        begin, end = offsets
        nbytes = math.prod(shape) * _DTYPES[dtype][0]
        if end - begin != nbytes:
            raise fail(f"{end - begin} bytes in the file, but {dtype} {shape} takes {nbytes}")
        return begin, end, TensorInfo(name, dtype, tuple(shape), nbytes, self.path)

    def read(self, name: str) -> "mx.array":
        """The tensor, copied once out of a memory map that is gone when this returns."""
        import mlx.core as mx  # headers alone are read without MLX
        import numpy as np

        info = self.tensors[name]
        itemsize, held_as, dtype = _DTYPES[info.dtype]
        if info.nbytes == 0:
            return mx.zeros(info.shape, getattr(mx, dtype))
        start = self._payload + self._offsets[name]
        page = start - start % mmap.ALLOCATIONGRANULARITY
        try:
            with open(self.path, "rb") as file:
                if _identity(file.fileno()) != self._identity:
                    raise UserError(f"{self.path} changed after it was opened; start again when it is complete")
                pages = mmap.mmap(file.fileno(), start - page + info.nbytes, access=mmap.ACCESS_READ, offset=page)
        except OSError as error:
            raise UserError(f"{self.path}: tensor {shown(name)} cannot be read: {error.strerror or error}") from None
        with pages:
            if hasattr(mmap, "MADV_WILLNEED"):
                pages.madvise(mmap.MADV_WILLNEED)
            view = np.frombuffer(pages, held_as, info.nbytes // itemsize, start - page).reshape(info.shape)
            array = mx.array(view, getattr(mx, held_as))  # without a dtype float64 would become float32
            del view  # the map cannot close under it
        return array if held_as == dtype else array.view(getattr(mx, dtype))


def shown(name: str) -> str:
    """A name from a file, fit for one line of a message."""
    name = name if name.isprintable() else ascii(name)[1:-1]
    return name if len(name) <= 120 else f"{name[:100]}... ({len(name)} characters)"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _identity(descriptor: int) -> tuple[int, ...]:
    stat = os.fstat(descriptor)
    return stat.st_size, stat.st_mtime_ns, stat.st_dev, stat.st_ino


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
