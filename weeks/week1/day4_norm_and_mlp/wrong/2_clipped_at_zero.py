"""Drops what is below zero, as ReLU does: the dip to -0.278 is lost.

caught by: TestTask2Silu::test_below_zero
"""

import mlx.core as mx


def silu(x: mx.array) -> mx.array:
    return mx.maximum(x, 0) * mx.sigmoid(x)
