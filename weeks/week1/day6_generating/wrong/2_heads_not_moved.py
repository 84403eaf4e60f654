"""Reshapes [B, M, G, page, D] as it lies: the shape is right, and heads and slots are mixed.

caught by: TestTask2GatherPages::test_every_slot
"""

import mlx.core as mx


def gather_pages(pool: mx.array, pages: mx.array, heads: mx.array) -> mx.array:
    _, G, page, D = pool.shape
    B, M = pages.shape
    return pool[pages].reshape(B, G, M * page, D)
