"""Gives a list: the first token comes after the last was computed, and nobody can stop in between.

caught by: TestTask5Decode::test_nothing_before_it_is_asked_for
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

Draw = TypeVar("Draw")


def decode(advance: Callable[[Draw], Draw], draw: Draw, limit: int, ahead: Callable[[], bool]) -> Iterator[Draw]:
    draws = [draw]
    while len(draws) < limit:
        draws.append(advance(draws[-1]))
    return iter(draws)
