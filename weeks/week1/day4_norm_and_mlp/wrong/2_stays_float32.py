"""Computes in float32 and forgets to go back: twice the bytes, and the down projection runs in float32.

caught by: TestTask2Silu::test_against_float64
"""

import mlx.core as mx


def silu(x: mx.array) -> mx.array:
    wide = x.astype(mx.float32)
    return wide * mx.sigmoid(wide)
