"""Finds the end by adding step_size: a shorter last chunk never reaches it, and its logits are not computed.

caught by: TestTask4Prefill::test_logits_of_the_last_chunk_alone
"""

from collections.abc import Callable, Sequence

import mlx.core as mx


def prefill(
    feed: Callable[[Sequence[int], bool], mx.array], prompt: Sequence[int], start: int, step_size: int
) -> mx.array:
    for begin in range(start, len(prompt), step_size):
        out = feed(prompt[begin : begin + step_size], begin + step_size == len(prompt))
    return out
