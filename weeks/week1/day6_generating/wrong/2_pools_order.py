"""Reads the pages in the order of the pool, which is friendlier to memory and shuffles the text.

caught by: TestTask2GatherPages::test_pages_in_the_order_of_the_table
"""

import mlx.core as mx


def gather_pages(pool: mx.array, pages: mx.array, heads: mx.array) -> mx.array:
    _, G, page, D = pool.shape
    B, M = pages.shape
    return pool[mx.sort(pages, axis=1)[:, None, :], heads[None, :, None]].reshape(B, G, M * page, D)
