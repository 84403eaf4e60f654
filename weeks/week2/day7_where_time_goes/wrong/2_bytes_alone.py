"""Leaves calls out altogether: a small model's bandwidth then looks ruinous.

caught by: TestTask2Fit::test_two_measurements
"""

from collections.abc import Sequence

import numpy as np

from tinymlx.bench.profile import Line


def fit(calls: Sequence[float], nbytes: Sequence[float], seconds: Sequence[float]) -> Line:
    t = np.array(seconds)
    b = np.array(nbytes) / t
    return Line(0.0, float(1e-9 * (b @ b) / b.sum()))
