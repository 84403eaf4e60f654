"""Computes a successor of the last token too: a whole step for nothing.

caught by: TestTask5Decode::test_in_step
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

Draw = TypeVar("Draw")


def decode(advance: Callable[[Draw], Draw], draw: Draw, limit: int, ahead: Callable[[], bool]) -> Iterator[Draw]:
    for _ in range(limit):
        upcoming = advance(draw) if ahead() else None
        yield draw
        draw = advance(draw) if upcoming is None else upcoming
