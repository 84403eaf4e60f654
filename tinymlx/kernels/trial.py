"""One trial of our kernels: right beside the float32 twin, and how fast beside MLX's route. Runs in a child process.

`python -m tinymlx.kernels.trial` reads `[operation, signature]` lines from standard input and writes, a line each, `[index, "begun"]`,
`[index, "ours"]` before our code runs for the first time, and `[index, verdict]`: what is left of it if a kernel ends or hangs the process.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from tinymlx import kernels  # noqa: F401 - fills the list of operations
from tinymlx.kernels import signature as signatures
from tinymlx.kernels.cases import ROUNDOFF
from tinymlx.kernels.route import operations
from tinymlx.kernels.timing import medians, outputs_of
from tinymlx.memory.verdicts import Verdict
from tinymlx.ops.linear import Linear

PIECE = 1 << 15  # rows of a vocabulary


def try_out(name: str, signature: Sequence, before_ours: Callable[[], None]) -> Verdict:
    """Run an operation's `ours` on drawn arguments of a signature, then of large matrices so packed; time it where it is right."""
    routes, step = operations[name].routes, "unfit"
    ours = routes["ours"]
    try:
        larger = signatures.enlarged(signature)
        calls = [signatures.draw(s, seed) for seed, s in enumerate((signature, larger)) if s]
        calls = [(args, kwargs) for args, kwargs in calls if ours.applies(*args, **kwargs)]
        if not calls:
            return Verdict("unfit", detail="it does not take these rows rounded up")
        args, kwargs = calls[0]
        rival = next(routes[r] for r in ("mlx", "twin") if r in routes and routes[r].applies(*args, **kwargs))
        likes = [outputs_of(rival.run, call) for call in calls]
        mx.eval(likes)
        wants = [_truth(routes["twin"].run, call, like) for call, like in zip(calls, likes)]
        before_ours()
        step, worst = "failed", 0.0
        for call, want, like in zip(calls, wants, likes):
            got = outputs_of(ours.run, call)
            if any(y is not None and _form(x) != _form(y) for x, y in zip(got, like, strict=True)):
                return Verdict("wrong", detail="its outputs have other shapes or dtypes than MLX's")
            worst = max([worst, *(excess(x, y) for x, y in zip(got, want) if x is not None and y is not None)])
        if worst > 1:
            return Verdict("wrong", min(worst, 1e9), detail=f"error {worst:.3g} of its bound")
        return Verdict("right", round(worst, 3), round(speed_up(ours.run, rival.run, signature), 3))
    except Exception as error:  # whatever a kernel or its wrapper does wrong
        return Verdict.of_error(step, error)
    finally:
        mx.clear_cache()


def _form(x: mx.array | None) -> tuple | None:
    return None if x is None else (x.shape, x.dtype)


def _truth(run: Callable, call: tuple[list, dict], like: list) -> list[mx.array | None]:
    """The twin's outputs in float32; those of a vocabulary in pieces, as its dense matrix would take gigabytes."""
    args, kwargs = call
    N = like[0].shape[-1]
    wide = [i for i, a in enumerate(args) if isinstance(a, Linear) and a.weight.shape[0] == N > PIECE]
    pieces = []
    for start in range(0, N, PIECE) if wide else (None,):
        some = list(args)
        for i in wide:
            some[i] = _rows(args[i], slice(start, start + PIECE))
        pieces.append(outputs_of(run, signatures.in_float32((some, kwargs))))
        mx.eval(pieces[-1])
    return [None if parts[0] is None else mx.concatenate(parts, -1) for parts in zip(*pieces)]


def _rows(w: Linear, rows: slice) -> Linear:
    lora = w.lora
    if lora is not None:
        columns = None if lora.column_scale is None else lora.column_scale[rows]
        lora = lora._replace(b=lora.b[rows], column_scale=columns)
    return Linear(*(a if a is None else a[rows] for a in w[:4]), w.quantization, lora)


def excess(got: mx.array, want: mx.array) -> float:
    """The error of `got` over its bound, on the whole or where it is worst; infinite for what is not a number.

    Bounds are in roundings of got's dtype beside the outputs' root mean square, with room for long sums and angles in float32: 3 on the
    whole, since inputs of products are rounded too, 16 for a single output. A single product left out of 10,000 exceeds the first.
    """
    u, error = ROUNDOFF[got.dtype], mx.abs(got.astype(mx.float32) - want)
    rms = mx.sqrt(mx.mean(want * want)) + 1e-30
    whole = mx.sqrt(mx.mean(error * error)) / (rms * (3 * u + 3e-5))
    single = (error / (16 * u * mx.abs(want) + rms * (16 * u + 3e-4))).max()
    ratio = max(whole.item(), single.item())
    return ratio if ratio == ratio and whole.item() == whole.item() else float("inf")


def speed_up(ours: Callable, mlx: Callable, signature: Sequence) -> float:
    """Time of `mlx` over that of `ours`."""
    seconds = medians({"ours": ours, "mlx": mlx}, lambda seed: signatures.draw(signature, seed))
    return seconds["mlx"] / seconds["ours"]


def main(limit_s: int = 60) -> None:
    """Try what standard input asks for, and be gone after `limit_s` seconds whatever hangs."""
    signal.alarm(limit_s)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed

    def say(index: int, state: Any) -> None:
        out.write(json.dumps([index, state]) + "\n")
        out.flush()

    for index, line in enumerate(sys.stdin):
        say(index, "begun")
        say(index, try_out(*json.loads(line), lambda: say(index, "ours")))


if __name__ == "__main__":
    main()
