"""Squares seconds: the error of the longest measurement outweighs all that short ones say about the cost of a call.

caught by: TestTask2Fit::test_relative_errors
"""

from collections.abc import Sequence

import numpy as np

from tinymlx.bench.profile import Line


def fit(calls: Sequence[float], nbytes: Sequence[float], seconds: Sequence[float]) -> Line:
    t = np.array(seconds)
    c, b = np.array(calls), np.array(nbytes)
    size = np.linalg.norm(b)
    call_s, byte_s = np.linalg.lstsq(np.stack([c, b / size], 1), t, rcond=None)[0]
    byte_s = byte_s / size
    if call_s < 0:
        return Line(0.0, 1e-9 * (b @ b) / (b @ t))
    if byte_s <= 0:
        return Line((c @ t) / (c @ c), float("inf"))
    return Line(float(call_s), float(1e-9 / byte_s))
