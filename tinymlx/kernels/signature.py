"""What a call of an operation looks like: arguments -> shapes, dtypes, packing and numbers -> random arguments like these.

A signature is a tuple of tuples that can be hashed and written as JSON. Rows beyond 16 count as the next power of two.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from tinymlx.cache import KVView
from tinymlx.ops.linear import Linear, Lora, Quantization

PLAIN = {type(None), bool, int, float, str}
FLOATS = (mx.float32, mx.float16, mx.bfloat16)
EXACT_ROWS = 16
LARGE = 2048  # some GPUs were reported to err from 1024 x 2048 on
WHOLE = 32  # drawn integers lie below: tokens and positions of any model


def describe(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple:
    """The signature of a call. Raises TypeError for an argument that is none of what operations take."""
    return tuple(map(_argument, args)), tuple((name, _argument(value)) for name, value in sorted(kwargs.items()))


def _argument(x: Any) -> Any:
    """An argument that is an array has rows: [B, ..., L, K] in floating point, [B, L] or [B] in integers."""
    if type(x) is not mx.array:
        return _part(x)
    shape, floating = list(x.shape), x.dtype in FLOATS
    if len(shape) > (2 if floating else 0):
        if len(shape) > 1:
            tokens = -2 if floating else -1
            shape[tokens] = _bucket(shape[tokens], shape[0] * shape[tokens])
        shape[0] = _bucket(shape[0], shape[0])
    return "array", tuple(shape), x.dtype


def _part(x: Any) -> Any:
    kind = type(x)  # `isinstance` would take most of a call's time
    if kind is mx.array:
        return "array", x.shape, x.dtype
    if kind in PLAIN:
        return x
    if kind is KVView:
        batch, pages = x.block_table.shape
        page = ((), None) if x.is_empty else (x.pool.shape[1:], x.pool.dtype)
        width = 1 << (pages - 1).bit_length() if pages else 0
        return "KVView", _bucket(batch, batch), width, *page, x.new_lengths is None
    if kind is mx.Dtype:
        return "dtype", x
    if isinstance(x, tuple):
        return kind.__name__, *map(_part, x)
    raise TypeError(f"an argument is a {kind.__name__}; arrays, numbers, Linear and KVView can be described")


def _bucket(size: int, rows: int) -> int:
    return size if rows <= EXACT_ROWS else 1 << (size - 1).bit_length()


def mapped(change: Callable[[Any], Any], x: Any) -> Any:
    """x with each array and dtype in it, however deep, replaced by `change` of it."""
    if isinstance(x, dict):
        return {key: mapped(change, value) for key, value in x.items()}
    if isinstance(x, tuple | list):
        parts = [mapped(change, part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return change(x) if isinstance(x, mx.array | mx.Dtype) else x


def in_float32(x: Any) -> Any:
    """Floating point becomes float32: packed weights stay, their scales do not."""

    def change(x: Any) -> Any:
        if isinstance(x, mx.Dtype):
            return mx.float32
        return x.astype(mx.float32) if x.dtype in FLOATS else x

    return mapped(change, x)


def enlarged(signature: Sequence) -> tuple | None:
    """The same packing, dtypes and rows on matrices of LARGE x LARGE; None for a call with large ones, none, or experts."""
    args, kwargs = signature
    shapes = [(a[1][1], a[5]) for a in args if isinstance(a, list | tuple) and a[0] == "Linear"]
    large = (s[-2] >= LARGE // 2 and s[-1] * 32 // (packing[2] if packing else 32) >= LARGE for s, packing in shapes)
    if all(large) or any(len(shape) > 2 for shape, _ in shapes):
        return None

    def grown(a: Any) -> Any:
        if not isinstance(a, list | tuple):
            return a
        if a[0] == "array":
            return ("array", (*a[1][:-1], LARGE), a[2]) if _dtype(a[2]) in FLOATS else a
        if a[0] != "Linear":
            return a
        (_, shape, dtype), bias, scales, biases, packing, lora = a[1:]
        columns = LARGE if packing is None else LARGE * packing[2] // 32
        weight = ("array", (*shape[:-2], LARGE, columns), dtype)
        scaled = [s and ("array", (*s[1][:-2], LARGE, LARGE // packing[1]), s[2]) for s in (scales, biases)]
        bias = bias and ("array", (*bias[1][:-1], LARGE), bias[2])
        if lora is not None:
            (_, down, a_type), (_, up, b_type), scale, column_scale = lora[1:]
            a, b = ("array", (*down[:-1], LARGE), a_type), ("array", (*up[:-2], LARGE, up[-1]), b_type)
            lora = "Lora", a, b, scale, column_scale and ("array", (LARGE,), column_scale[2])
        return "Linear", weight, bias, *scaled, packing, lora

    return tuple(map(grown, args)), kwargs


def draw(signature: Sequence, seed: int) -> tuple[list, dict[str, Any]]:
    """Random (args, kwargs) of a signature. Outputs of linear layers are about 1."""
    made = _Drawing(seed)
    args, kwargs = signature
    return [made.argument(a) for a in args], {name: made.argument(a) for name, a in kwargs}


class _Drawing:
    def __init__(self, seed: int):
        self.key = mx.random.key(seed)

    def _next(self) -> mx.array:
        self.key, key = mx.random.split(self.key)
        return key

    def argument(self, a: Any) -> Any:
        if not isinstance(a, list | tuple):
            return a
        kind, *rest = a
        if kind == "dtype":
            return _dtype(rest[0])
        if kind == "tuple":
            return tuple(map(self.argument, rest))
        return {"array": self.array, "Linear": self.linear, "KVView": self.view, "Lora": self.lora}[kind](*rest)

    def array(self, shape: Sequence[int], dtype: Any, scale: float = 1.0) -> mx.array:
        """Vectors are around 1, for they are norms' weights and rotations' periods."""
        dtype = _dtype(dtype)
        if dtype not in FLOATS:
            return mx.random.randint(0, WHOLE, shape, key=self._next()).astype(dtype)
        if len(shape) == 1:
            return self.between(0.5, 1.5, shape).astype(dtype)
        return (mx.random.normal(shape, key=self._next()) * scale).astype(dtype)

    def between(self, low: float, high: float, shape: Sequence[int]) -> mx.array:
        return mx.random.uniform(low, high, shape, key=self._next())

    def linear(self, weight: Any, bias: Any, scales: Any, biases: Any, packing: Any, lora: Any) -> Linear:
        bias, lora = self.argument(bias), self.argument(lora)
        shape, dtype = weight[1:]
        if packing is None:
            return Linear(self.array(shape, dtype, shape[-1] ** -0.5), bias, lora=lora)
        _, group_size, bits, mode = packing
        words = mx.random.randint(0, 1 << 16, (*shape[:-1], 2 * shape[-1]), mx.uint16, self._next()).view(mx.uint32)
        root = math.sqrt(scales[1][-1] * group_size)
        if _dtype(scales[2]) == mx.uint8:  # exponents of 2, of values up to 6
            scale = mx.random.randint(-1, 2, scales[1], key=self._next()) + (127 - round(math.log2(3 * root)))
            return Linear(words, bias, scale.astype(mx.uint8), None, Quantization(group_size, bits, mode), lora)
        scale = self.between(0.5, 1.5, scales[1]) * (12**0.5 / (root * 2**bits))  # codes spread by 2^bits / sqrt(12)
        offset = scale * self.between(-0.6, -0.4, scales[1]) * 2**bits
        arrays = scale.astype(_dtype(scales[2])), offset.astype(_dtype(biases[2]))
        return Linear(words, bias, *arrays, Quantization(group_size, bits, mode), lora)

    def lora(self, a: Any, b: Any, scale: float, column_scale: Any) -> Lora:
        a = self.array(*a[1:], a[1][-1] ** -0.5)
        return Lora(a, self.array(*b[1:], b[1][-1] ** -0.5), scale, self.argument(column_scale))

    def view(self, batch: int, pages: int, page: Sequence[int], dtype: Any, all_new: bool) -> KVView:
        new_lengths = None if all_new else mx.ones(batch, mx.int32)
        if pages == 0:
            return KVView.empty(batch, new_lengths)
        count = batch * pages
        pool = self.array((2 * count, *page), dtype)
        table = mx.random.permutation(count, key=self._next()).reshape(batch, pages).astype(mx.int32)
        lengths = mx.random.randint(1, pages * page[1] + 1, (batch,), mx.int32, self._next())
        return KVView(pool, table, lengths, count, new_lengths)


def _dtype(name: Any) -> mx.Dtype:
    return getattr(mx, str(name).rpartition(".")[2])
