"""Our kernels beside MLX's own operations and their twins, at the shapes of Qwen3: `tinymlx kernels bench`. One table: `BENCHES`."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import mlx.core as mx

from tinymlx import ops
from tinymlx.errors import UserError
from tinymlx.kernels import linear_mlx
from tinymlx.kernels import signature as signatures
from tinymlx.kernels.quantize_w4 import quantize_w4
from tinymlx.kernels.rms_norm import rms_norm
from tinymlx.kernels.route import operations
from tinymlx.kernels.timing import Call, arrays_of, medians, outputs_of
from tinymlx.kernels.w4_matmul import w4_matmul
from tinymlx.kernels.w4_matvec import w4_matvec
from tinymlx.memory.sizes import GROUP, HEAD_DIM, SIZES, VOCAB, Size
from tinymlx.ops.linear import Linear

MODELS = tuple(size for size in SIZES if size.name in ("Qwen3-0.6B", "Qwen3-4B", "Qwen3-8B"))
DECODE = (1, 4, 16)
EPS = 1e-6


class Draw(NamedTuple):
    """Makes the arguments of one call, for a model and so many rows."""

    size: Size
    rows: int
    dtype: mx.Dtype
    seed: int

    def array(self, *shape: int) -> mx.array:
        return self._drawn(("array", shape, self.dtype))

    def packed(self, N: int, K: int) -> Linear:
        """[N, K] in 4 bits."""
        scales = ("array", (N, K // GROUP), self.dtype)
        words = ("array", (N, K // 8), mx.uint32)
        return self._drawn(("Linear", words, None, scales, scales, ("Quantization", GROUP, 4, "affine"), None))

    def below(self, limit: int, *shape: int) -> mx.array:
        """Integers."""
        return mx.random.randint(0, limit, shape, key=mx.random.key(self.seed))

    def _drawn(self, described: tuple) -> Any:
        return signatures.draw(([described], ()), self.seed)[0][0]


class Bench(NamedTuple):
    """arguments: what all three functions are called with. rows: which are measured."""

    arguments: Callable[[Draw], tuple]
    ours: Callable
    mlx: Callable
    twin: Callable
    rows: tuple[int, ...] = DECODE


def _operation(name: str, arguments: Callable[[Draw], tuple], rows: tuple[int, ...] = DECODE) -> Bench:
    """The routes of a coarse operation."""
    return Bench(arguments, *(operations[name].routes[route].run for route in ("ours", "mlx", "twin")), rows)


def _product(d: Draw) -> tuple:
    return d.array(d.rows, d.size.hidden), d.packed(d.size.intermediate, d.size.hidden)


def _norm_qkv(d: Draw) -> tuple:
    widths = [heads * HEAD_DIM for heads in (d.size.heads, d.size.kv_heads, d.size.kv_heads)]
    return d.array(d.rows, 1, d.size.hidden), d.array(d.size.hidden), EPS, *(d.packed(N, d.size.hidden) for N in widths)


def _norm_gate_up(d: Draw) -> tuple:
    weights = [d.packed(d.size.intermediate, d.size.hidden) for _ in range(2)]
    return d.array(d.rows, 1, d.size.hidden), d.array(d.size.hidden), EPS, *weights


def _heads(d: Draw) -> tuple:
    q, k = (d.array(d.rows, 1, heads * HEAD_DIM) for heads in (d.size.heads, d.size.kv_heads))
    weights = d.array(HEAD_DIM), d.array(HEAD_DIM)
    return q, k, *weights, EPS, d.below(32768, d.rows), ops.rope_periods(HEAD_DIM, 1e6)[0], 1.0


def _quantized_matmul(x: mx.array, w: Linear) -> mx.array:
    return mx.quantized_matmul(x, w.weight, w.scales, w.biases, transpose=True, group_size=GROUP, bits=4)


BENCHES = {
    "rms_norm": Bench(
        lambda d: (d.array(d.rows, d.size.hidden), d.array(d.size.hidden), EPS),
        ours=rms_norm,
        mlx=mx.fast.rms_norm,
        twin=ops.rms_norm,
        rows=(*DECODE, 512),
    ),
    "qk_norm_rope": _operation("qk_norm_rope", _heads, (*DECODE, 512)),
    "embed_w4": _operation("embed", lambda d: (d.below(VOCAB, d.rows, 1), d.packed(VOCAB, d.size.hidden), d.dtype)),
    "quantize_w4": Bench(
        lambda d: (d.array(d.rows, d.size.hidden), GROUP),
        ours=quantize_w4,
        mlx=lambda w, group_size: mx.quantize(w, group_size=group_size, bits=4),
        twin=lambda w, group_size: ops.quantize(w, group_size, 4),
        rows=(512, 4096),
    ),
    "norm_qkv": _operation("norm_qkv", _norm_qkv),
    "norm_gate_up": _operation("norm_gate_up", _norm_gate_up),
    "w4_matvec": Bench(_product, w4_matvec, _quantized_matmul, ops.linear),
    "w4_matmul": Bench(_product, w4_matmul, linear_mlx.linear, ops.linear, rows=(32, 128, 512)),
}
"""Name in metal_kernels/ -> how it is measured."""


class Result(NamedTuple):
    """`seconds` of a call and what did not run, by "ours", "mlx" and "twin"; bytes and operations that a call needs at least."""

    kernel: str
    model: str
    rows: int
    nbytes: int
    flops: int
    seconds: dict[str, float]
    failed: dict[str, str]

    @property
    def factor(self) -> float | None:
        """MLX's time over that of ours."""
        return self.seconds["mlx"] / self.seconds["ours"] if {"mlx", "ours"} <= self.seconds.keys() else None

    @property
    def gb_s(self) -> float:
        """Least bytes a second, by ours."""
        return self.nbytes / self.seconds["ours"] / 1e9


def plan(name: str | None = None) -> list[tuple[str, Size, int]]:
    """(kernel, model, rows) of what to measure; on a CPU, where our kernels run in a stand-in for a GPU, little."""
    on_cpu = mx.default_device() == mx.cpu
    models = MODELS[:1] if on_cpu else MODELS
    names = [name] if name else list(BENCHES)
    return [
        (k, size, n) for k in names for size in models for n in (BENCHES[k].rows[:1] if on_cpu else BENCHES[k].rows)
    ]


def run(todo: list[tuple[str, Size, int]], rounds: int) -> Iterator[Result]:
    dtype = mx.float32 if mx.default_device() == mx.cpu else mx.bfloat16
    for kernel, size, rows in todo:
        yield measure(kernel, size, rows, dtype, rounds)
        mx.clear_cache()


def measure(kernel: str, size: Size, rows: int, dtype: mx.Dtype, rounds: int) -> Result:
    bench = BENCHES[kernel]

    def call(seed: int) -> Call:
        return list(bench.arguments(Draw(size, rows, dtype, seed))), {}

    first, runs, failed = call(0), {"ours": bench.ours, "mlx": bench.mlx, "twin": bench.twin}, {}
    for name, function in list(runs.items()):
        try:
            outputs = outputs_of(function, first)
            mx.eval(outputs)
        except (RuntimeError, ValueError, UserError) as error:  # it does not compile here, or does not take this
            failed[name] = str(error)
            del runs[name]
    seconds = medians(runs, call, rounds) if runs else {}
    return Result(kernel, size.name, rows, *least(first[0], outputs), seconds, failed)


def least(args: list, outputs: list[mx.array]) -> tuple[int, int]:
    """(bytes, operations): each array once, of a table that integers look up so many rows; products of the first argument with each Linear."""
    x, weights = args[0], [a for a in args if isinstance(a, Linear)]
    nbytes = sum(a.nbytes for a in arrays_of((args, outputs)))
    if mx.issubdtype(x.dtype, mx.integer):
        return nbytes - sum(a.nbytes // len(a) * (len(a) - x.size) for w in weights for a in arrays_of(w)), 0
    return nbytes, sum(2 * x.size * len(w.weight) for w in weights)
