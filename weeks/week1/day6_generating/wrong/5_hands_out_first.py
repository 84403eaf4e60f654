"""Enqueues the next step after the token was handed out: the device waits for whoever reads it.

caught by: TestTask5Decode::test_ahead
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

Draw = TypeVar("Draw")


def decode(advance: Callable[[Draw], Draw], draw: Draw, limit: int, ahead: Callable[[], bool]) -> Iterator[Draw]:
    for remaining in range(limit - 1, -1, -1):
        yield draw
        if remaining:
            draw = advance(draw)
