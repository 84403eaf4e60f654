"""Takes a shorter chunk for the last: a prompt of whole chunks has none.

caught by: TestTask4Prefill::test_logits_of_the_last_chunk_alone
"""

from collections.abc import Callable, Sequence

import mlx.core as mx


def prefill(
    feed: Callable[[Sequence[int], bool], mx.array], prompt: Sequence[int], start: int, step_size: int
) -> mx.array:
    for begin in range(start, len(prompt), step_size):
        chunk = prompt[begin : begin + step_size]
        out = feed(chunk, len(chunk) < step_size)
    return out
