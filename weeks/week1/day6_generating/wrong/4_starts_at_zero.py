"""Feeds what is cached already: the model reads the conversation twice, once behind itself.

caught by: TestTask4Prefill::test_every_token_once
"""

from collections.abc import Callable, Sequence

import mlx.core as mx


def prefill(
    feed: Callable[[Sequence[int], bool], mx.array], prompt: Sequence[int], start: int, step_size: int
) -> mx.array:
    for begin in range(0, len(prompt), step_size):
        chunk = prompt[begin : begin + step_size]
        out = feed(chunk, begin + len(chunk) == len(prompt))
    return out
