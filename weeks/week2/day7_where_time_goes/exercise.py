"""Day 2.7: where the time goes. Each function here replaces the product's function of the same name; the chapter is README.md beside it.

tinymlx learn check 2.7 --watch                  grades this file whenever you save it
tinymlx bench --model smollm2 --mine 2.7         profiles a decode step with your functions
"""

from collections.abc import Mapping, Sequence

from tinymlx.bench.profile import Line, Split
from tinymlx.bench.roofline import Roof

HOMES = {
    "floor_s": "tinymlx.bench.profile",
    "fit": "tinymlx.bench.profile",
    "split": "tinymlx.bench.profile",
    "gains": "tinymlx.bench.profile",
}


def floor_s(nbytes: float, flops: float, roof: Roof) -> float:
    """Seconds that an operation takes at least: bytes arrive while arithmetic goes on, so the longer of both.

    >>> floor_s(1e9, 2e9, Roof(gb_s=100, tflop_s=2)), floor_s(1e9, 1e12, Roof(gb_s=100, tflop_s=2))
    (0.01, 0.5)

    roof.gb_s: 10^9 bytes a second; roof.tflop_s: 10^12 operations a second.
    """
    raise NotImplementedError("2.7 task 1: the floor of an operation")


def fit(calls: Sequence[float], nbytes: Sequence[float], seconds: Sequence[float]) -> Line:
    """The line through measurements whose relative errors have the least sum of squares.

    >>> fit([100, 100], [1e6, 9e6], [2e-3, 10e-3])      # 1 ms is 1 MB, and 1 ms is left for 100 calls
    Line(call_s=1e-05, gb_s=1.0)

    Measurement i made calls[i] calls that moved nbytes[i] bytes together and took seconds[i]. Finds `call_s` and `gb_s` of

        predicted[i] = calls[i] * call_s + nbytes[i] / (gb_s * 1e9)

    with the least sum of ((predicted[i] - seconds[i]) / seconds[i])^2. At least two measurements, not proportional to each other. Where calls
    or bytes would come out below 0 they are left out, and the other is fitted alone: call_s is 0, or gb_s infinite.
    """
    raise NotImplementedError("2.7 task 2: a call's cost and a byte's, from measurements")


def split(seconds: float, floor: float, calls: float) -> Split:
    """What was measured, part by part: the floor first, then the cost of calls as far as there is time left, and the gap that neither explains.

    >>> split(10.0, 3.0, 2.0), split(10.0, 9.0, 2.0)
    (Split(floor=3.0, calls=2.0, gap=5.0), Split(floor=9.0, calls=1.0, gap=0.0))

    Calls may be enqueued while bytes arrive, so floor and calls together may be more than was measured. The parts always add up to
    `seconds` and none is negative, even where the floor alone is longer: the data came from a cache then.
    """
    raise NotImplementedError("2.7 task 3: floor, calls and gap")


def gains(step_s: float, parts: Mapping[str, tuple[float, float]]) -> list[tuple[str, float]]:
    """How many times faster a step of `step_s` were if one operation alone took its new time, the best first (Amdahl, 1967).

    >>> gains(10.0, {"a": (8.0, 7.0), "b": (2.0, 0.0)})      # seconds now, and then
    [('b', 1.25), ('a', 1.1111111111111112)]

    parts: operation -> (seconds it takes now, seconds it would take). The step may be longer than its parts together.
    """
    raise NotImplementedError("2.7 task 4: what each improvement would be worth")
