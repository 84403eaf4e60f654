"""Where the time of a decode step goes: each coarse operation beside what its bytes, its arithmetic and its calls must take.

Method. A step runs once while the arguments of each operation are noted. Then all calls of one operation are run in a row, with the weights
of all layers, so that no cache holds them. Step and rows are timed in turn, round by round, and each one's best counts: other programs only
ever slow a trial down, and rarely all of one round. In a step each call waits for the one before, in a row it does not: what a step takes
beyond all its rows is that waiting, and Python's.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from tinymlx import kernels
from tinymlx.bench.roofline import Roof
from tinymlx.cache import PagePool
from tinymlx.engine.step import Stepper
from tinymlx.models.operators import operators, total
from tinymlx.models.qwen3 import Qwen3

FEWEST_ROUNDS = 5
# Coarse operation -> what it does, by the names of models.operators.
CONTAINS = {
    "embed": ("embed_tokens",),
    "norm_qkv": ("input_layernorm", "q_proj", "k_proj", "v_proj"),
    "qk_norm_rope": ("q_norm", "k_norm", "rope"),
    "attend": ("q k^T", "softmax", "weights v"),
    "linear_residual": ("o_proj", "down_proj"),
    "norm_gate_up": ("post_attention_layernorm", "gate_proj", "up_proj", "silu(gate) up"),
    "head": ("norm", "lm_head"),
}


class Part(NamedTuple):
    """All calls of one operation in a step."""

    name: str
    calls: int
    nbytes: float
    """Read and written of what outlives the step: weights, K/V."""
    flops: float
    seconds: float


class Line(NamedTuple):
    """seconds = calls * call_s + bytes / (gb_s * 1e9)"""

    call_s: float
    gb_s: float


class Split(NamedTuple):
    """Seconds that add up to what was measured."""

    floor: float
    calls: float
    gap: float


def floor_s(nbytes: float, flops: float, roof: Roof) -> float:
    """Seconds that an operation takes at least: bytes arrive while arithmetic goes on, so the longer of both."""
    return max(nbytes / (roof.gb_s * 1e9), flops / (roof.tflop_s * 1e12))


def fit(calls: Sequence[float], nbytes: Sequence[float], seconds: Sequence[float]) -> Line:
    """The line through measurements whose relative errors have the least sum of squares.

    >>> fit([100, 100], [1e6, 9e6], [2e-3, 10e-3])      # 1 ms is 1 MB, and 1 ms is left for 100 calls
    Line(call_s=1e-05, gb_s=1.0)

    At least two measurements, not proportional to each other. Where calls or bytes would come out below 0 they are left out: call_s is 0, or gb_s infinite.
    """
    # Relative: divided by its seconds, each measurement says 1 = call_s * c + s_per_byte * b.
    c = [n / t for n, t in zip(calls, seconds)]
    b = [n / t for n, t in zip(nbytes, seconds)]
    cc, cb, bb = _dot(c, c), _dot(c, b), _dot(b, b)
    determinant = cc * bb - cb * cb
    call_s, byte_s = (sum(c) * bb - sum(b) * cb) / determinant, (sum(b) * cc - sum(c) * cb) / determinant
    if call_s < 0:
        call_s, byte_s = 0.0, sum(b) / bb
    if byte_s <= 0:
        return Line(sum(c) / cc, float("inf"))
    return Line(call_s, 1e-9 / byte_s)


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b))


def split(seconds: float, floor: float, calls: float) -> Split:
    """What was measured, part by part: the floor first, then the cost of calls as far as there is time left, and the gap that neither explains.

    >>> split(10.0, 3.0, 2.0), split(10.0, 9.0, 2.0)
    (Split(floor=3.0, calls=2.0, gap=5.0), Split(floor=9.0, calls=1.0, gap=0.0))

    Calls may be enqueued while bytes arrive, so floor and calls together may be more than was measured.
    """
    floor = min(floor, seconds)
    calls = min(calls, seconds - floor)
    return Split(floor, calls, seconds - floor - calls)


def gains(step_s: float, parts: Mapping[str, tuple[float, float]]) -> list[tuple[str, float]]:
    """How many times faster a step of `step_s` were if one operation alone took its new time, the best first (Amdahl, 1967).

    >>> gains(10.0, {"a": (8.0, 7.0), "b": (2.0, 0.0)})      # seconds now, and then
    [('b', 1.25), ('a', 1.1111111111111112)]
    """
    worth = {name: step_s / (step_s - now + then) for name, (now, then) in parts.items()}
    return sorted(worth.items(), key=lambda item: -item[1])


# Measuring ------------------------------------------------------------------------------------------------------------


def profile(model: Qwen3, context: int, seconds: float) -> tuple[float, list[Part]]:
    """Seconds of a decode step after `context` tokens, and its operations. Takes about `seconds`. Raises UserError as `operators` does."""
    config = model.config
    counted = operators(config, 1, context, weight_bytes=1, float_bytes=0)
    weight_bytes = model.nbytes_per_token / total(counted).weight_bytes  # on average
    counted = operators(config, 1, context, weight_bytes=weight_bytes, float_bytes=model.dtype.size)
    pool = PagePool(
        config.num_hidden_layers, config.num_key_value_heads, config.head_dim, context // 16 + 1, model.dtype
    )
    kv, token = pool.view([pool.allocate(pool.num_pages)], [context]), mx.zeros((1, 1), mx.int32)
    noted = _noted(lambda: model.head(model(token, kv)[0]))
    step = Stepper(model)
    rows = {name: _in_a_row(getattr(kernels, name), calls) for name, calls in noted.items()}
    best = _best_s({"": lambda: mx.eval(step(token, kv, True)), **rows}, seconds)
    parts = []
    for name, calls in noted.items():
        work = total([o for o in counted if o.name in CONTAINS[name]])
        parts.append(Part(name, len(calls), work.weight_bytes + work.kv_bytes, work.flops, best[name]))
    return best[""], parts


def _noted(step: Callable[[], mx.array]) -> dict[str, list[tuple[tuple, dict]]]:
    """Operation -> the arguments of its calls."""
    noted: dict[str, list[tuple[tuple, dict]]] = {}

    def noting(name: str) -> Callable:
        operation = getattr(kernels, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            noted.setdefault(name, []).append((args, kwargs))
            return operation(*args, **kwargs)

        return call

    with kernels.graft(kernels, **{name: noting(name) for name in CONTAINS}):
        mx.eval(step())
    return noted


def _in_a_row(operation: Callable, calls: list[tuple[tuple, dict]]) -> Callable[[], None]:
    run = lambda: [operation(*args, **kwargs) for args, kwargs in calls]  # noqa: E731
    if mx.default_device() == mx.gpu and kernels.traceable():
        run = mx.compile(run)  # as a step is
    return lambda: mx.eval(run())


def _best_s(trials: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    took = {name: [] for name in trials}
    began = time.perf_counter()
    while len(took[""]) < FEWEST_ROUNDS or time.perf_counter() - began < seconds:
        for name, trial in trials.items():
            start = time.perf_counter()
            trial()
            took[name].append(time.perf_counter() - start)
    return {name: min(times) for name, times in took.items()}
