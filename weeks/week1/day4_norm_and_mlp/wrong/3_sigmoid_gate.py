"""The first GLU, whose gate is between 0 and 1: an open gate lets up through unscaled.

caught by: TestTask3Swiglu::test_an_open_gate
"""

import mlx.core as mx


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    return mx.sigmoid(gate) * up
