"""Hands columns of size 1e4 and 1e11 to a solver that takes the smaller for zero.

caught by: TestTask2Fit::test_many_exact_measurements
"""

from collections.abc import Sequence

import numpy as np

from tinymlx.bench.profile import Line


def fit(calls: Sequence[float], nbytes: Sequence[float], seconds: Sequence[float]) -> Line:
    t = np.array(seconds)
    c, b = np.array(calls) / t, np.array(nbytes) / t
    size = 1.0
    call_s, byte_s = np.linalg.lstsq(np.stack([c, b / size], 1), np.ones(len(t)), rcond=1e-6)[0]
    byte_s = byte_s / size
    if byte_s <= 0:
        return Line(c.sum() / (c @ c), float("inf"))
    return Line(float(call_s), float(1e-9 / byte_s))
