"""Computes the next step before it is asked for, whatever ahead() says: one in vain at each end token, and on a CPU the token waits.

caught by: TestTask5Decode::test_in_step
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

Draw = TypeVar("Draw")


def decode(advance: Callable[[Draw], Draw], draw: Draw, limit: int, ahead: Callable[[], bool]) -> Iterator[Draw]:
    for remaining in range(limit - 1, -1, -1):
        upcoming = advance(draw) if remaining else None
        yield draw
        draw = upcoming
