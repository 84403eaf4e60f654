"""Our C++ for a CPU, behind the `host` routes: built with the machine's compiler when first needed, kept in the user's cache.

MLX multiplies packed weights on one thread, and eight rows cost it eight times as much as one. Here all cores share the work, vectors unpack
the weight, and rows share it. Runs on float32, in MLX's own memory, and at once: not inside mx.compile.
"""

import ctypes
import functools
import os
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np

from tinymlx import ops
from tinymlx.cache import KVView
from tinymlx.errors import UserError
from tinymlx.kernels.gradient import refusing
from tinymlx.kernels.host import compiler
from tinymlx.kernels.w4_matvec import check_packed
from tinymlx.ops.linear import Linear, add_lora

FLAGS = ("-O3", "-pthread", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
KINDS = {mx.float32: 0, mx.float16: 1, mx.bfloat16: 2}


class _Weight(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("words", "scales", "biases", "residual", "y")),
        ("N", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("group", "bits", "kind")),
    ]


@functools.cache
def library() -> ctypes.CDLL | None:
    """None on a machine without a compiler or a cache: MLX serves there."""
    note = lambda: print("building our code for this CPU, once (some 5 s)", file=sys.stderr)  # noqa: E731
    try:
        loaded = ctypes.CDLL(str(compiler.plain_library(Path(__file__).parent, FLAGS, note)))
    except (UserError, OSError):
        return None
    kinds = {"p": ctypes.c_void_p, "f": ctypes.c_float, "l": ctypes.c_int64, "i": ctypes.c_int32}
    signatures = {
        "packed_products": "ppfllpii",
        "swiglu": "ppli",
        "norm_rope": "ppfppfllllpi",
        "attend": "ppppppplllllllflpi",
    }
    for name, signature in signatures.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = [kinds[letter] for letter in signature], None
    return loaded


@functools.cache
def threads() -> int:
    """One a core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def takes(x: mx.array, *weights: Linear, norm: mx.array | None = None, residual: mx.array | None = None) -> bool:
    """Whether `linears` takes them: float32 on a CPU, weights packed alike, affine in 4 or 8 bits."""
    if mx.default_device() != mx.cpu or x.dtype != mx.float32 or x.size == 0 or library() is None:
        return False
    try:
        for w in weights:
            check_packed(x, w)
    except ValueError:
        return False
    if norm is not None and (norm.dtype != mx.float32 or norm.shape != x.shape[-1:]):
        return False
    if residual is not None and (residual.dtype, residual.shape) != (x.dtype, (*x.shape[:-1], len(weights[0].weight))):
        return False
    return weights[0].quantization.mode == "affine" and len({w.quantization for w in weights}) == 1


def linears(
    x: mx.array,
    *weights: Linear,
    norm: tuple[mx.array, float] | None = None,
    residual: mx.array | None = None,
    swiglu: bool = False,
) -> list[mx.array]:
    """x, or with `norm` = (weight [K], eps) its rms_norm: [..., K] -> [..., N] for each weight, as `ops.linear` with its bias and adapter.

    residual: added to the only one. swiglu: of two, gate and up, becomes one.
    """
    if any(w.lora is not None or w.bias is not None for w in weights):
        h = mx.fast.rms_norm(x, *norm) if norm else x
        outputs = refusing(lambda: products(h, *weights), "a product on a CPU", [h])
        for i, w in enumerate(weights):
            if w.lora is not None:
                outputs[i] = add_lora(outputs[i], h, w.lora)
            if w.bias is not None:
                outputs[i] = outputs[i] + w.bias
        if swiglu:
            outputs = [ops.swiglu(*outputs)]
        return outputs if residual is None else [residual + outputs[0]]
    inputs = [x, *norm[:1]] if norm else [x]
    run = lambda: products(x, *weights, norm=norm, residual=residual, swiglu=swiglu)  # noqa: E731
    return refusing(run, "a product on a CPU", inputs if residual is None else [*inputs, residual])


def products(
    x: mx.array,
    *weights: Linear,
    norm: tuple[mx.array, float] | None = None,
    residual: mx.array | None = None,
    swiglu: bool = False,
) -> list[mx.array]:
    """As `linears`, of plain weights packed alike; everything else in float32."""
    rows = _floats(x).reshape(-1, x.shape[-1])
    weight, eps = (_floats(norm[0]), norm[1]) if norm else (None, 0.0)
    added = None if residual is None else _floats(residual)
    made = [np.empty((len(rows), w.weight.shape[0]), np.float32) for w in weights]
    held = [[_bytes(a) for a in (w.weight, w.scales, w.biases)] for w in weights]
    table = (_Weight * len(weights))()
    for entry, w, arrays, y in zip(table, weights, held, made):
        entry.words, entry.scales, entry.biases = (a.ctypes.data for a in arrays)
        entry.residual = None if added is None else added.ctypes.data
        entry.y, entry.N = y.ctypes.data, y.shape[1]
        entry.group, entry.bits, entry.kind = w.quantization.group_size, w.quantization.bits, KINDS[w.scales.dtype]
    address = None if weight is None else weight.ctypes.data
    library().packed_products(rows.ctypes.data, address, eps, *rows.shape, table, len(weights), threads())
    if swiglu:
        library().swiglu(*(y.ctypes.data for y in made), made[0].size, threads())
        made = made[:1]
    return [mx.array(y.reshape(*x.shape[:-1], -1)) for y in made]


def takes_attention(*arrays: mx.array | None) -> bool:
    """Whether `norm_rope` and `attend` take them: float32 on a CPU."""
    mine = mx.default_device() == mx.cpu and all(a is None or a.dtype == mx.float32 for a in arrays)
    return mine and library() is not None


def norm_rope(
    x: mx.array, weight: mx.array | None, eps: float, offsets: mx.array, periods: mx.array, scale: float
) -> mx.array:
    """x: [B, L, heads * D]. Returns [B, heads, L, D], each head normed if there is a weight [D], and turned; see `qk_norm_rope`."""
    B, L, width = x.shape
    D = 2 * periods.size
    values, turns, starts = _floats(x), _floats(periods), np.array(offsets).astype(np.int32)
    norm = None if weight is None else _floats(weight)
    y = np.empty((B, width // D, L, D), np.float32)
    address = None if norm is None else norm.ctypes.data
    library().norm_rope(
        *(values.ctypes.data, address, eps, starts.ctypes.data, turns.ctypes.data, scale, B, L, width // D, D),
        *(y.ctypes.data, threads()),
    )
    return mx.array(y)


def attend(
    q: mx.array, k_new: mx.array, v_new: mx.array, kv: KVView, *, scale: float, window: int | None = None
) -> mx.array:
    """As the operation of this name: y [B, H, L, D]."""
    (B, H, L, D), G = q.shape, k_new.shape[1]
    queries, keys, values = map(_floats, (q, k_new, v_new))
    lengths, page, pool = np.array(kv.lengths).astype(np.int32), 1, queries
    pages = [np.zeros((B, 0), np.int32)] * 2
    if not kv.is_empty:
        pool, page = _bytes(kv.pool), kv.pool.shape[2]
        pages = [np.ascontiguousarray(np.array(ids).astype(np.int32)) for ids in kv.pages()]
    y = np.empty(q.shape, np.float32)
    library().attend(
        *(a.ctypes.data for a in (queries, keys, values, pool, *pages, lengths)),
        *(B, H, G, L, D, pages[0].shape[1], page, scale, window or 0, y.ctypes.data, threads()),
    )
    return mx.array(y)


def _floats(a: mx.array) -> np.ndarray:
    return np.ascontiguousarray(np.array(a, copy=None))


def _bytes(a: mx.array) -> np.ndarray:
    """Its memory, in order."""
    memory = memoryview(a)
    return np.frombuffer(memory if memory.c_contiguous else memoryview(mx.contiguous(a)), np.uint8)
