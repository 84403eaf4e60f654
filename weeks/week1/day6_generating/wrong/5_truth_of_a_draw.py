"""Asks for the truth of a draw: token 0 is computed twice, and MLX waits for the array.

caught by: TestTask5Decode::test_a_draw_may_be_zero
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

Draw = TypeVar("Draw")


def decode(advance: Callable[[Draw], Draw], draw: Draw, limit: int, ahead: Callable[[], bool]) -> Iterator[Draw]:
    for remaining in range(limit - 1, -1, -1):
        upcoming = advance(draw) if remaining and ahead() else None
        yield draw
        if remaining:
            draw = upcoming or advance(draw)
