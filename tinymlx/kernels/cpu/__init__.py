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
from tinymlx.errors import UserError
from tinymlx.kernels.gradient import refusing
from tinymlx.kernels.host import compiler
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
        loaded = ctypes.CDLL(str(compiler.plain_library(Path(__file__).parent / "products.cpp", FLAGS, note)))
    except (UserError, OSError):
        return None
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    small = ctypes.c_int32
    loaded.packed_products.argtypes = [pointer, pointer, ctypes.c_float, integer, integer, pointer, small, small]
    loaded.swiglu.argtypes = [pointer, pointer, integer, small]
    loaded.packed_products.restype = loaded.swiglu.restype = None
    return loaded


@functools.cache
def threads() -> int:
    """One a core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def takes(x: mx.array, *weights: Linear) -> bool:
    """Whether `products` takes them: float32 on a CPU, packed alike in 4 or 8 bits."""
    return (
        mx.default_device() == mx.cpu
        and x.dtype == mx.float32
        and x.size > 0
        and all(w.quantization is not None and w.quantization == weights[0].quantization for w in weights)
        and weights[0].quantization.mode == "affine"
        and weights[0].quantization.bits in (4, 8)
        and weights[0].quantization.group_size in (32, 64, 128)
        and all(w.weight.ndim == 2 and w.scales.dtype in KINDS and w.scales.dtype == w.biases.dtype for w in weights)
        and library() is not None
    )


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
    if norm and norm[0].dtype != mx.float32 or any(w.lora is not None or w.bias is not None for w in weights):
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


def _floats(a: mx.array) -> np.ndarray:
    return np.ascontiguousarray(np.array(a, copy=None))


def _bytes(a: mx.array) -> np.ndarray:
    """Its memory, in order."""
    memory = memoryview(a)
    return np.frombuffer(memory if memory.c_contiguous else memoryview(mx.contiguous(a)), np.uint8)
