"""The roofline (Williams, Waterman, Patterson, 2009): work can go no faster than arithmetic allows, nor than its bytes
arrive.

    roof(intensity) = min(peak, bandwidth * intensity)        intensity: operations a byte

Decoding reads every weight for two operations, so it lies on the slope; prefill of a long chunk lies under the flat
part.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from tinymlx.memory import sizes
from tinymlx.memory.sizes import Size

CONTEXT, CHUNK = 4096, 512  # tokens: what decoding attends to, and what prefill takes at once


def attainable(intensity: float, gb_s: float, tflop_s: float) -> float:
    """TFLOP/s that work of `intensity` operations a byte can reach.

    >>> attainable(4, gb_s=100, tflop_s=2), attainable(100, gb_s=100, tflop_s=2)
    (0.4, 2)
    """
    return min(tflop_s, gb_s * intensity / 1e3)


class Roof(NamedTuple):
    gb_s: float
    tflop_s: float

    @property
    def ridge(self) -> float:
        """Operations a byte from which on arithmetic, not memory, is the limit."""
        return self.tflop_s * 1e3 / self.gb_s

    def at(self, intensity: float) -> float:
        """TFLOP/s that work of this intensity can reach."""
        return attainable(intensity, *self)


class Work(NamedTuple):
    """A model's decoding or prefill: what it takes for each token, and what the roof makes of it."""

    model: str
    phase: str
    """"decode" or "prefill"."""
    intensity: float
    tokens_per_s: float
    bound_by: str
    """"memory" or "arithmetic"."""


class Point(NamedTuple):
    mark: str
    intensity: float
    tflop_s: float


def decode(size: Size, packing: str, roof: Roof, float_bytes: int, context: int = CONTEXT) -> Work:
    """One token after `context` others: all weights and all of their K/V are read."""
    read = sizes.bytes_per_token(size, packing, float_bytes) + context * sizes.kv_bytes_per_token(size, float_bytes)
    return _work(size, "decode", roof, sizes.flops_per_token(size, context), read)


def prefill(size: Size, packing: str, roof: Roof, float_bytes: int, chunk: int = CHUNK) -> Work:
    """A first chunk of a prompt: weights are read once for all of its tokens, of a mixture of experts nearly all of
    them.

    Only the last token is projected to the vocabulary; that one is not counted.
    """
    read = sizes.weight_bytes(size, packing, float_bytes) / chunk + sizes.kv_bytes_per_token(size, float_bytes)
    flops = sizes.flops_per_token(size, chunk // 2) - 2 * sizes.VOCAB * size.hidden
    return _work(size, "prefill", roof, flops, read)


def _work(size: Size, phase: str, roof: Roof, flops: float, read_bytes: float) -> Work:
    intensity = flops / read_bytes
    bound_by = "memory" if intensity < roof.ridge else "arithmetic"
    return Work(size.name, phase, intensity, roof.at(intensity) * 1e12 / flops, bound_by)


def qwen3(packing: str, roof: Roof, float_bytes: int) -> list[Work]:
    """Decoding and prefill of every official size. float_bytes: of scales, activations and K/V."""
    return [phase(size, packing, roof, float_bytes) for size in sizes.SIZES for phase in (decode, prefill)]


def draw(roof: Roof, points: Iterable[Point], width: int = 72, height: int = 16) -> str:
    """The roof in characters, both axes logarithmic; each point by its mark, the later of two in one place on top."""
    points = list(points)
    left = min(0.25, *(p.intensity for p in points)) if points else 0.25
    right = max(16 * roof.ridge, *(2 * p.intensity for p in points)) if points else 16 * roof.ridge
    top = 2 * max([roof.tflop_s, *(p.tflop_s for p in points)])
    bottom = min([roof.at(left), *(p.tflop_s for p in points)]) / 2
    columns, rows = width - 10, height - 3

    def column(intensity: float) -> int:
        return round(math.log(intensity / left) / math.log(right / left) * (columns - 1))

    def row(tflop_s: float) -> int:
        return round(math.log(top / tflop_s) / math.log(top / bottom) * (rows - 1))

    grid = [[" "] * columns for _ in range(rows)]
    for c in range(columns):
        intensity = left * (right / left) ** (c / (columns - 1))
        grid[row(roof.at(intensity))][c] = "/" if intensity < roof.ridge else "-"
    for point in points:
        grid[row(point.tflop_s)][column(point.intensity)] = point.mark

    labels = {row(10.0**power): f"{10.0**power:g}" for power in range(-6, 5) if bottom <= 10.0**power <= top}
    labels[row(roof.tflop_s)] = f"{roof.tflop_s:.3g}"
    lines = [" TFLOP/s over FLOP a byte"]
    lines += [f"{labels.get(r, ''):>8} |{''.join(cells).rstrip()}" for r, cells in enumerate(grid)]
    ticks = [" "] * columns
    for power in range(math.ceil(math.log2(left)), math.floor(math.log2(right)) + 1, 2):
        label, start = f"{2.0**power:g}", column(2.0**power)
        if start + len(label) <= columns:
            ticks[start : start + len(label)] = label
    return "\n".join([*lines, " " * 9 + "+" + "-" * columns, " " * 10 + "".join(ticks).rstrip()])
