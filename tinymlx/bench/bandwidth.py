"""How fast this machine moves memory, multiplies matrices and multiplies a matrix by a vector.

Method. Trials are timed one by one after two that warm up (pages, clocks, kernels being built). Median and best are
reported. A trial's result is forced, so no part of it can be left out. Buffers are many times the last cache. Bytes
are those the operation must move: N for a read, 2 N for a copy or a scale (read N, write N). A CPU that first fetches
the line it will overwrite moves 3 N in truth, and gets no credit for it. A GB is 10^9 bytes.

The roof is made of best trials: it is what the machine can do, and other programs only ever slow a trial down. A
matvec stands for what decoding will do, so its median counts.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from tinymlx.memory.machine import Machine, sysctl
from tinymlx.memory.plan import limit_bytes
from tinymlx.memory.sizes import GROUP, PACKINGS, bytes_per_weight

MIB = 2**20
WARM_UP = 2
FEWEST_TRIALS = 3
UP, DOWN = (12288, 4096), (4096, 12288)  # Qwen3-8B's up_proj and down_proj, the shapes of the matvec


class Rate(NamedTuple):
    name: str
    by: str
    """Who did the work: "numpy, 2 threads", "MLX"."""
    unit: str
    median: float
    best: float
    trials: int


def counts(key: str, rate: Rate) -> float:
    """Of median and best the one that is kept under `key`."""
    return rate.median if key.startswith("matvec_") else rate.best


class Task(NamedTuple):
    """One measurement to come: `run(seconds)` takes about that long, without setting up."""

    key: str
    """Among memory.measured.KEYS, or "" for one that is shown and not kept."""
    name: str
    run: Callable[[float], Rate]


def measure(name: str, by: str, unit: str, amount: float, trial: Callable[[], object], seconds: float) -> Rate:
    """Run `trial` for about `seconds`. amount: what one trial does, bytes / 1e9 where `unit` is GB/s."""
    for _ in range(WARM_UP):
        trial()
    took = []
    began = time.perf_counter()
    while len(took) < FEWEST_TRIALS or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        trial()
        took.append(time.perf_counter() - start)
    return Rate(name, by, unit, amount / statistics.median(took), amount / min(took), len(took))


def tasks(machine: Machine, scale: float = 1.0) -> list[Task]:
    """What to measure here. scale: of the sizes, for tests, which have no time for true ones."""
    nbytes = int(buffer_bytes(machine) * scale)
    gpu = machine.backend != "cpu"
    by_mlx = [
        Task("read_gb_s" * gpu, "read", lambda s: mlx_read(nbytes, s)),
        Task("copy_gb_s" * gpu, "copy", lambda s: mlx_copy(nbytes, s)),
        Task("scale_gb_s" * gpu, "scale", lambda s: mlx_scale(nbytes, s)),
    ]
    by_numpy = [
        Task("read_gb_s", "read", lambda s: numpy_read(nbytes, machine.cores, s)),
        Task("copy_gb_s", "copy", lambda s: numpy_copy(nbytes, machine.cores, s)),
        Task("scale_gb_s", "scale", lambda s: numpy_scale(nbytes, machine.cores, s)),
    ]
    shapes = [tuple(max(GROUP, int(side * scale**0.5) // GROUP * GROUP) for side in shape) for shape in (UP, DOWN)]
    least = int((512 if gpu else 64) * MIB * scale)
    dtype = mx.bfloat16 if gpu else mx.float32
    largest = int((8192 if gpu else 2048) * scale**0.5) // GROUP * GROUP or GROUP
    multiply = [Task("matmul_tflop_s", "matmul", lambda s: matmul(dtype, largest, s))]
    for packing, bits in PACKINGS.items():
        key = f"matvec_{packing if bits else 'dense'}_gb_s"
        name = f"matvec {packing if bits else _short(dtype)}"
        multiply.append(Task(key, name, lambda s, packing=packing: matvec(packing, dtype, shapes, least, s)))
    return [*([] if gpu else by_numpy), *by_mlx, *multiply]


# Sizes ----------------------------------------------------------------------------------------------------------------


def buffer_bytes(machine: Machine) -> int:
    """Bytes of what is read: at least 256 MiB, 4 GiB on a CUDA card, whose reads are over sooner."""
    least = {"cuda": 4096 * MIB, "metal": 1024 * MIB}.get(machine.backend, 256 * MIB)
    return past_cache(last_cache_bytes(), least, limit_bytes(machine))


def past_cache(cache: int, least: int, usable: int) -> int:
    """Bytes that no cache answers for: 16 times `cache` and at least `least`, yet no more than an eighth of `usable`; whole
    8 MiB, rounded down.
    """
    return min(max(16 * cache, least), usable // 8) // (8 * MIB) * (8 * MIB)


def last_cache_bytes(caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Bytes of the CPU's last cache as the kernel knows it, 32 MiB if it does not."""
    sizes = []
    for file in caches.glob("index*/size"):
        text = file.read_text().strip()
        if text[:-1].isdigit() and text[-1] in "KM":
            sizes.append(int(text[:-1]) * (1024 if text[-1] == "K" else MIB))
    on_mac = sysctl("hw.l2cachesize")
    return max([*sizes, int(on_mac) if on_mac.isdigit() else 0]) or 32 * MIB


# Memory through NumPy, all threads: a CPU's bandwidth -----------------------------------------------------------------


def _by_threads(threads: int, seconds: float, name: str, nbytes: float, work: Callable[[int], object]) -> Rate:
    """`work(i)` for every thread at once; NumPy lets go of the interpreter in loops this long."""
    with ThreadPoolExecutor(threads) as pool:
        by = f"NumPy, {threads} thread{'s' * (threads > 1)}"
        return measure(name, by, "GB/s", nbytes / 1e9, lambda: list(pool.map(work, range(threads))), seconds)


def touched(nbytes: int, threads: int) -> list[np.ndarray]:
    """`nbytes` of float32 ones, an equal part for each thread."""
    # Written, not only reserved: pages never written are all the same page of zeros.
    return np.array_split(np.ones(nbytes // 4, np.float32), threads)


def numpy_read(nbytes: int, threads: int, seconds: float) -> Rate:
    parts = touched(nbytes, threads)
    # max keeps up with memory, sum does not
    return _by_threads(threads, seconds, "read", nbytes, lambda i: parts[i].max())


def numpy_copy(nbytes: int, threads: int, seconds: float) -> Rate:
    source, target = touched(nbytes // 2, threads), touched(nbytes // 2, threads)
    return _by_threads(threads, seconds, "copy", nbytes, lambda i: np.copyto(target[i], source[i]))


def numpy_scale(nbytes: int, threads: int, seconds: float) -> Rate:
    source, target = touched(nbytes // 2, threads), touched(nbytes // 2, threads)
    return _by_threads(threads, seconds, "scale", nbytes, lambda i: np.multiply(source[i], 2, out=target[i]))


# Memory through MLX: on a GPU its bandwidth, on a CPU what one thread of MLX makes of it ------------------------------


def _buffers(nbytes: int, count: int = 4) -> list[mx.array]:
    buffers = [mx.full((nbytes // count // 4,), 1.0 + i, mx.float32) for i in range(count)]
    mx.eval(buffers)
    return buffers


def mlx_read(nbytes: int, seconds: float) -> Rate:
    buffers = _buffers(nbytes)
    return measure("read", "MLX", "GB/s", nbytes / 1e9, lambda: mx.eval([b.max() for b in buffers]), seconds)


def mlx_copy(nbytes: int, seconds: float) -> Rate:
    # Joining two arrays is MLX's plain copy: a copy of one alone shares its buffer and moves nothing.
    buffers = _buffers(nbytes // 2)
    return measure("copy", "MLX", "GB/s", nbytes / 1e9, lambda: mx.eval(mx.concatenate(buffers)), seconds)


def mlx_scale(nbytes: int, seconds: float) -> Rate:
    buffers = _buffers(nbytes // 2)
    return measure("scale", "MLX", "GB/s", nbytes / 1e9, lambda: mx.eval([b * 2 for b in buffers]), seconds)


# Arithmetic -----------------------------------------------------------------------------------------------------------


def matmul(dtype: mx.Dtype, largest: int, seconds: float) -> Rate:
    """n x n by n x n, n up to `largest` as time allows: a reference BLAS is 50 times slower than a fast one. 2 n^3
    operations.
    """
    n = min(512, largest)
    a = b = _square(n, dtype)
    while n < largest and 8 * min(_seconds(lambda: mx.eval(a @ b)) for _ in range(5)) < seconds / 6:
        n *= 2
        a, b = _square(n, dtype), _square(n, dtype)
    return measure(f"matmul {_short(dtype)} {n}", "MLX", "TFLOP/s", 2 * n**3 / 1e12, lambda: mx.eval(a @ b), seconds)


def matvec(packing: str, dtype: mx.Dtype, shapes: list[tuple[int, int]], least: int, seconds: float) -> Rate:
    """One row through up and down projections in turn, each needing the last one's result as in a model, until `least`
    bytes are read.

    The rate counts weights, scales and biases: what decoding reads.
    """
    bits = PACKINGS[packing]
    each = sum(n * k for n, k in shapes) * bytes_per_weight(packing, dtype.size)
    chain = [_weight(shape, bits, dtype, seed) for seed in range(max(1, round(least / each))) for shape in shapes]
    nbytes = sum(a.nbytes for weight in chain for a in weight)
    x = mx.ones((1, shapes[0][1]), dtype)
    mx.eval(chain, x)

    def trial() -> None:
        y = x
        for weight in chain:
            if bits is None:
                y = y @ weight[0].T
            else:
                y = mx.quantized_matmul(y, *weight, transpose=True, group_size=GROUP, bits=bits)
        mx.eval(y)

    name = "dense " + _short(dtype) if bits is None else f"{bits}-bit, group {GROUP}"
    return measure(f"matvec {name}", "MLX", "GB/s", nbytes / 1e9, trial, seconds)


def _weight(shape: tuple[int, int], bits: int | None, dtype: mx.Dtype, seed: int) -> tuple[mx.array, ...]:
    """Random, scaled so that a vector keeps its length: numbers too small for the format are slow on a CPU."""
    rows = min(64, shape[0])  # repeated: neither time nor the caches know
    values = np.random.default_rng(seed).random((rows, shape[1]), np.float32)
    few = mx.array((values - 0.5) * (12 / shape[1]) ** 0.5).astype(dtype)
    parts = (few,) if bits is None else mx.quantize(few, group_size=GROUP, bits=bits)
    weight = tuple(mx.tile(part, (shape[0] // rows, 1)) for part in parts)
    mx.eval(weight)
    return weight


def _square(n: int, dtype: mx.Dtype) -> mx.array:
    square = mx.array(np.random.default_rng(n).random((n, n), np.float32) - 0.5).astype(dtype)
    mx.eval(square)
    return square


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _short(dtype: mx.Dtype) -> str:
    return {mx.float32: "float32", mx.bfloat16: "bfloat16"}[dtype]


def run(todo: list[Task], seconds: float) -> Iterator[tuple[Task, Rate]]:
    """Each task with its rate, in turn; `seconds` for all of them together, setting up not counted."""
    for task in todo:
        yield task, task.run(seconds / len(todo))
