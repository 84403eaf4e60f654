"""The gate without its x: the older GLU. Large values are cut to 1.

caught by: TestTask2Silu::test_against_float64
"""

import mlx.core as mx


def silu(x: mx.array) -> mx.array:
    return mx.sigmoid(x)
