"""Feeds tokens one by one: right, and all weights are read for each of them.

caught by: TestTask4Prefill::test_sizes_of_chunks
"""

from collections.abc import Callable, Sequence

import mlx.core as mx


def prefill(
    feed: Callable[[Sequence[int], bool], mx.array], prompt: Sequence[int], start: int, step_size: int
) -> mx.array:
    for i in range(start, len(prompt)):
        out = feed(prompt[i : i + 1], i == len(prompt) - 1)
    return out
