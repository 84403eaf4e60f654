"""Seconds of a call as in a model: one of a compiled chain, over arguments that no cache holds, in turn with what it is compared to."""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from tinymlx.kernels import signature as signatures

ROUNDS = 7
SAMPLE_S = 0.004  # of one measurement, so that starting it does not count
COLD_BYTES = 1 << 27  # arguments rotate over so many bytes: in a model no weight is still in a cache

Call = tuple[list, dict[str, Any]]
"""(args, kwargs)"""


def medians(runs: Mapping[str, Callable], draw: Callable[[int], Call], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of one call of each function, over rounds in which all take turns. draw(seed): the arguments of a call."""
    call = draw(0)
    copies = max(1, min(16, COLD_BYTES // (sum(a.nbytes for a in arrays_of(call)) + 1)))
    calls = [call, *(draw(seed) for seed in range(1, copies))]
    mx.eval([arrays_of(call) for call in calls])
    # On a CPU our kernels run as they are called, and no launch is waited for: a call at a time.
    timer = _one_by_one if mx.default_device() == mx.cpu else _chained
    timers = {name: timer(run, calls) for name, run in runs.items()}
    taken = [{name: seconds() for name, seconds in timers.items()} for _ in range(rounds)]
    return {name: statistics.median(row[name] for row in taken) for name in runs}


def outputs_of(run: Callable, call: Call) -> list[mx.array | None]:
    """None is an output that nobody asked for: a route may give it all the same."""
    outputs = run(*call[0], **call[1])
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def arrays_of(call: Any) -> list[mx.array]:
    """All arrays in it, however deep."""
    found: list[mx.array] = []
    signatures.mapped(lambda a: found.append(a) if isinstance(a, mx.array) else None, call)
    return found


def _one_by_one(run: Callable, calls: list[Call]) -> Callable[[], float]:
    turn = itertools.cycle(calls)

    def seconds() -> float:
        call = next(turn)
        began = time.perf_counter()
        mx.eval(arrays_of(outputs_of(run, call)))
        return time.perf_counter() - began

    seconds()
    return seconds


def _chained(run: Callable, calls: list[Call]) -> Callable[[], float]:
    few = _chain(run, calls, 4)
    few()
    links = _chain(run, calls, max(4, len(calls), min(64, int(SAMPLE_S / few()))))
    links()
    return links


def _chain(run: Callable, calls: list[Call], links: int) -> Callable[[], float]:
    """A function that times a call of a compiled chain of `links`, each waiting for the one before it."""
    arrays = [arrays_of(call) for call in calls]

    def chain(arrays: list[list[mx.array]]) -> list[mx.array]:
        outputs: list[mx.array] = []
        for i in range(links):
            leaves = iter(arrays[i % len(calls)])
            if outputs:
                first, *others = arrays[i % len(calls)]
                leaves = iter([mx.depends([first], outputs)[0], *others])
            call = signatures.mapped(lambda a: next(leaves) if isinstance(a, mx.array) else a, calls[i % len(calls)])
            outputs = arrays_of(outputs_of(run, call))
        return outputs

    compiled = mx.compile(chain)

    def seconds() -> float:
        began = time.perf_counter()
        mx.eval(compiled(arrays))
        return (time.perf_counter() - began) / links

    return seconds
