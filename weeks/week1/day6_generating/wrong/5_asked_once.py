"""Asks ahead() once: the engine cannot change its mind when it sees the pool being copied.

caught by: TestTask5Decode::test_asked_anew_at_each_step
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

Draw = TypeVar("Draw")


def decode(advance: Callable[[Draw], Draw], draw: Draw, limit: int, ahead: Callable[[], bool]) -> Iterator[Draw]:
    early = ahead()
    for remaining in range(limit - 1, -1, -1):
        upcoming = advance(draw) if remaining and early else None
        yield draw
        if remaining:
            draw = advance(draw) if upcoming is None else upcoming
