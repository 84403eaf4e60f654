"""Sets a negative cost to 0 and keeps the bandwidth that belonged to it.

caught by: TestTask2Fit::test_no_negative_call
"""

from collections.abc import Sequence

import numpy as np

from tinymlx.bench.profile import Line


def fit(calls: Sequence[float], nbytes: Sequence[float], seconds: Sequence[float]) -> Line:
    t = np.array(seconds)
    c, b = np.array(calls) / t, np.array(nbytes) / t
    size = np.linalg.norm(b)
    call_s, byte_s = np.linalg.lstsq(np.stack([c, b / size], 1), np.ones(len(t)), rcond=None)[0]
    byte_s = byte_s / size
    return Line(max(0.0, float(call_s)), float(1e-9 / byte_s) if byte_s > 0 else float("inf"))
