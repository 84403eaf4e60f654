"""Moves the page axis too far: slot 0 of all pages comes first, then slot 1 of all, and the mask fits none.

caught by: TestTask2GatherPages::test_every_slot
"""

import mlx.core as mx


def gather_pages(pool: mx.array, pages: mx.array, heads: mx.array) -> mx.array:
    _, G, page, D = pool.shape
    B, M = pages.shape
    return pool[pages].transpose(0, 2, 3, 1, 4).reshape(B, G, M * page, D)
