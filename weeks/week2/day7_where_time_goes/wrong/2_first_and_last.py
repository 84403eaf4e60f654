"""Draws the line through two of the measurements and ignores the others.

caught by: TestTask2Fit::test_relative_errors
"""

from collections.abc import Sequence

import numpy as np

from tinymlx.bench.profile import Line


def fit(calls: Sequence[float], nbytes: Sequence[float], seconds: Sequence[float]) -> Line:
    (c, d), (b, e), (t, u) = ((x[0], x[-1]) for x in (calls, nbytes, seconds))
    call_s, byte_s = np.linalg.solve([[c, b * 1e-9], [d, e * 1e-9]], [t, u])
    if call_s < 0 or byte_s < 0:
        return Line(0.0, 1e-9 * sum(nbytes) / sum(seconds))
    return Line(float(call_s), float(1 / byte_s))
