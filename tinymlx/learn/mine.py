"""The learner's functions in the running engine."""

import contextlib
import os
from collections.abc import Iterator, Sequence

from tinymlx.errors import UserError
from tinymlx.kernels import metal
from tinymlx.learn.days import Day, MetalDay, find_day
from tinymlx.learn.subject import blaming, grafted, load_functions, read_functions


def written_days(numbers: str) -> list[Day]:
    """ "1.1,1.4" -> those days. Raises UserError for one that there is not, or that was not started here."""
    days = [find_day(number.strip()) for number in numbers.split(",") if number.strip()]
    if not days:
        raise UserError("no day is named; give one or several, as in 1.1,1.4")
    for day in days:
        if not day.mine.is_file():
            raise UserError(
                f"{day.mine} is not there; tinymlx learn start {day.number}, or go to the folder where you did"
            )
    return days


@contextlib.contextmanager
def mine_in_engine(days: Sequence[Day]) -> Iterator[list[str]]:
    """Runs what the learner has written of these days inside the engine. Yields a line a day: what is theirs and what is not;
    at the end there is one more for functions in Metal that were never called.

    A model must be made inside, for it asks some of these functions when it is made. Raises UserError when nothing is written.
    For a day of Metal our kernels are asked for, TINYMLX_KERNELS=ours, unless the user asks for others.
    """
    lines, loaded = [], []
    for day in days:
        if not day.in_engine:
            raise UserError(
                f"the functions of day {day.number} are no part of the engine; tinymlx learn check {day.number}"
            )
        state = read_functions(day, day.mine)
        ready = {name for name, message in state.items() if message is None}
        functions = load_functions(day, day.mine, ready)
        if not isinstance(day, MetalDay):
            functions = {name: blaming(day, name, f, day.mine) for name, f in functions.items()}
        loaded.append((day, functions))
        missing = [name for name in day.homes if name not in functions]
        line = (
            f"{day.number} {day.topic}: your {', '.join(functions)}"
            if functions
            else f"{day.number}: nothing written yet"
        )
        lines.append(line + (f"; the product's {', '.join(missing)}" if functions and missing else ""))
    if not any(functions for _, functions in loaded):
        raise UserError(
            f"nothing is written yet in {', '.join(str(day.mine) for day in days)}; there is nothing of yours to run"
        )
    with contextlib.ExitStack() as stack:
        if any(isinstance(day, MetalDay) for day in days) and "TINYMLX_KERNELS" not in os.environ:
            os.environ["TINYMLX_KERNELS"] = "ours"
            stack.callback(os.environ.pop, "TINYMLX_KERNELS", None)
        for day, functions in loaded:
            stack.enter_context(grafted(day, functions))
        yield lines
        for day in days:
            if isinstance(day, MetalDay) and not any(str(day.mine) in metal.source(name) for name in metal.called()):
                lines.append(
                    f"your functions of {day.number} were not called: this model does not need them, or TINYMLX_KERNELS forbids it"
                )
