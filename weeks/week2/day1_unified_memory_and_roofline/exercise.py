"""Day 2.1: unified memory and the roofline. Each function here replaces the product's function of the same name; the chapter is README.md beside it.

tinymlx learn check 2.1 --watch          grades this file whenever you save it
tinymlx bench --mine 2.1                 measures this machine with your functions
"""

import statistics
import time
from collections.abc import Callable

import numpy as np

from tinymlx.bench.bandwidth import FEWEST_TRIALS, MIB, WARM_UP, Rate
from tinymlx.bench.roofline import CONTEXT, Roof, Work
from tinymlx.memory.sizes import GROUP, HEAD_DIM, PACKINGS, Size, flops_per_token, matmul_weights

HOMES = {
    "measure": "tinymlx.bench.bandwidth",
    "past_cache": "tinymlx.bench.bandwidth",
    "touched": "tinymlx.bench.bandwidth",
    "attainable": "tinymlx.bench.roofline",
    "bytes_per_weight": "tinymlx.memory.sizes",
    "bytes_per_token": "tinymlx.memory.sizes",
    "kv_bytes_per_token": "tinymlx.memory.sizes",
    "most_tokens_per_s": "tinymlx.memory.sizes",
    "decode": "tinymlx.bench.roofline",
}


def measure(name: str, by: str, unit: str, amount: float, trial: Callable[[], object], seconds: float) -> Rate:
    """Run `trial` for about `seconds`. amount: what one trial does, bytes / 1e9 where `unit` is GB/s.

    First WARM_UP trials that count for nothing, neither as a trial nor as time. Then trials, each timed alone with `time.perf_counter()`,
    until `seconds` have passed, and FEWEST_TRIALS of them at least. Returns Rate(name, by, unit, median, best, trials): `amount` over the
    median time, over the shortest time, and how many trials were timed.
    """
    raise NotImplementedError("2.1 task 1: a rate from trials")


def past_cache(cache: int, least: int, usable: int) -> int:
    """Bytes that no cache answers for.

    >>> past_cache(96 * MIB, 256 * MIB, 64 * 1024 * MIB) // MIB, past_cache(8 * MIB, 256 * MIB, 1000 * MIB) // MIB
    (1536, 120)

    16 times `cache` and at least `least`, yet no more than an eighth of `usable`; whole 8 MiB, rounded down.
    """
    raise NotImplementedError("2.1 task 2: buffers that are past the cache and really there")


def touched(nbytes: int, threads: int) -> list[np.ndarray]:
    """`nbytes` of float32 ones, an equal part for each thread: a list of one-dimensional arrays whose sizes differ by one at most.

    Every number has a place of its own in memory and has been written. nbytes is a multiple of 4.
    """
    raise NotImplementedError("2.1 task 2: buffers that are past the cache and really there")


def attainable(intensity: float, gb_s: float, tflop_s: float) -> float:
    """TFLOP/s that work of `intensity` operations a byte can reach.

    >>> attainable(4, gb_s=100, tflop_s=2), attainable(100, gb_s=100, tflop_s=2)
    (0.4, 2)

    gb_s: 10^9 bytes a second that memory delivers; tflop_s: 10^12 operations a second that arithmetic does.
    """
    raise NotImplementedError("2.1 task 3: the roof")


def bytes_per_weight(packing: str, float_bytes: int = 2) -> float:
    """Bytes of one weight of a matrix.

    >>> bytes_per_weight("4bit"), bytes_per_weight("4bit", 4), bytes_per_weight("bf16", 4)
    (0.5625, 0.625, 4)

    PACKINGS[packing] is the number of bits, or None where weights are not packed: they take `float_bytes` each then. Packed, GROUP of them
    share a scale and a bias of `float_bytes` each.
    """
    raise NotImplementedError("2.1 task 4: what a decoded token reads")


def bytes_per_token(size: Size, packing: str, float_bytes: int = 2) -> int:
    """Bytes of weights that decoding one token reads: of experts only the chosen, of an untied embedding nothing to speak of.

    >>> bytes_per_token(Size("Qwen3-0.6B", 28, 1024, 16, 8, 3072, True), "4bit")
    335216640

    matmul_weights(size, experts) counts weights in matrices, with `experts` experts a layer and without the embedding.
    """
    raise NotImplementedError("2.1 task 4: what a decoded token reads")


def kv_bytes_per_token(size: Size, float_bytes: int = 2) -> int:
    """Bytes of keys and values of one token in all layers; a head has HEAD_DIM numbers.

    >>> kv_bytes_per_token(Size("Qwen3-0.6B", 28, 1024, 16, 8, 3072, True))
    114688
    """
    raise NotImplementedError("2.1 task 4: what a decoded token reads")


def most_tokens_per_s(read_bytes: float, gb_s: float) -> float:
    """Tokens a second that memory of `gb_s` (10^9 bytes a second) allows when each reads `read_bytes`."""
    raise NotImplementedError("2.1 task 5: decode speed, predicted")


def decode(size: Size, packing: str, roof: Roof, float_bytes: int, context: int = CONTEXT) -> Work:
    """One token after `context` others: all weights that it needs and all of their K/V are read.

    roof.gb_s, roof.tflop_s: what the machine can do. flops_per_token(size, context) counts operations. Returns
    Work(size.name, "decode", intensity, tokens_per_s, bound_by): operations a byte, tokens a second under the roof, and "memory" or
    "arithmetic", whichever takes longer. Calls `bytes_per_token`, `kv_bytes_per_token` and `attainable` of this file, or computes alike.
    """
    raise NotImplementedError("2.1 task 5: decode speed, predicted")
