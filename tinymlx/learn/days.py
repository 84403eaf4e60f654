"""The days of the course, read from `weeks/weekN/dayM_topic/`.

An exercise says where its functions live in the product, and each of them which task it belongs to:

    HOMES = {"softmax": "tinymlx.ops"}

    def softmax(scores):
        raise NotImplementedError("1.1 task 1: weights that sum to 1")
"""

import ast
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

from tinymlx import paths
from tinymlx.errors import UserError

_FOLDER = re.compile(r"day(\d+)_(\w+)")
_MESSAGE = re.compile(r"(\d+\.\d+) task (\d+): (.+)", re.DOTALL)


@dataclass(frozen=True)
class Task:
    number: int
    title: str
    functions: tuple[str, ...]


@dataclass(frozen=True)
class Day:
    """One chapter: `number` is "1.1"; `folder` holds README.md, exercise.py, the tests and wrong answers."""

    number: str
    topic: str
    folder: Path

    @property
    def exercise(self) -> Path:
        return self.folder / "exercise.py"

    @property
    def tests(self) -> Path:
        return self.folder / f"test_day{self.number.partition('.')[2]}.py"

    @property
    def mine(self) -> Path:
        """Where the learner's copy lies: my/week1/day1_attention.py in the current folder."""
        return Path("my") / self.folder.parent.name / f"{self.folder.name}.py"

    @property
    def wrong_answers(self) -> list[Path]:
        return sorted((self.folder / "wrong").glob("*.py"))

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        found: dict[int, list[tuple[str, str]]] = {}
        for name, function in functions_of(self.exercise.read_text(encoding="utf-8")).items():
            if (message := stub_message(function)) and (parts := _MESSAGE.fullmatch(message)):
                found.setdefault(int(parts[2]), []).append((name, parts[3]))
        return tuple(
            Task(number, parts[0][1], tuple(name for name, _ in parts)) for number, parts in sorted(found.items())
        )

    def task(self, number: int) -> Task:
        for task in self.tasks:
            if task.number == number:
                return task
        raise UserError(f"day {self.number} has no task {number}; it has 1 to {len(self.tasks)}")

    @cached_property
    def homes(self) -> dict[str, ModuleType]:
        """Function -> the product's module that it lives in."""
        for node in ast.parse(self.exercise.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and [getattr(t, "id", None) for t in node.targets] == ["HOMES"]:
                return {name: pkgutil.resolve_name(home) for name, home in ast.literal_eval(node.value).items()}
        raise AssertionError(f"{self.exercise} does not say where its functions live")

    def reference(self, name: str) -> Callable:
        """The product's function, the one in force: a graft if there is one."""
        return getattr(self.homes[name], name)


def all_days() -> list[Day]:
    """In the order of the course."""
    found = []
    for folder in paths.weeks().glob("week*/day*_*"):
        match = _FOLDER.fullmatch(folder.name)
        if match and (folder / "exercise.py").is_file() and (folder / "README.md").is_file():
            found.append(Day(f"{folder.parent.name.removeprefix('week')}.{match[1]}", match[2], folder))
    return sorted(found, key=lambda day: [int(part) for part in day.number.split(".")])


def find_day(number: str) -> Day:
    """Raises UserError for a day that there is not."""
    days = all_days()
    for day in days:
        if day.number == number:
            return day
    raise UserError(f"there is no day {number}; there are {', '.join(day.number for day in days) or 'none yet'}")


def functions_of(source: str) -> dict[str, ast.FunctionDef]:
    """The functions at the top of a file. Raises SyntaxError."""
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def stub_message(function: ast.FunctionDef) -> str | None:
    """What an unwritten function raises; None if it does anything else than raise NotImplementedError("...")."""
    body = function.body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]  # the docstring
    if len(body) != 1 or not isinstance(body[0], ast.Raise) or not isinstance(body[0].exc, ast.Call):
        return None
    call = body[0].exc
    if getattr(call.func, "id", None) != "NotImplementedError" or len(call.args) != 1:
        return None
    return call.args[0].value if isinstance(call.args[0], ast.Constant) else None
