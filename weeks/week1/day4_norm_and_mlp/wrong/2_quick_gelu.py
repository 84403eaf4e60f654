"""x * sigmoid(1.702 x), the GELU of other models: close enough to look right in a plot.

caught by: TestTask2Silu::test_below_zero
"""

import mlx.core as mx


def silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(1.702 * x)
