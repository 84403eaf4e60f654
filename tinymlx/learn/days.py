"""The days of the course, read from `weeks/weekN/dayM_topic/`.

An exercise says where its functions live in the product, and each of them which task it belongs to:

    HOMES = {"softmax": "tinymlx.ops"}

    def softmax(scores):
        raise NotImplementedError("1.1 task 1: weights that sum to 1")

An exercise in Metal (`MetalDay`) replaces functions of metal_kernels/ by name:

    inline void share(...) { static_assert(false, "2.4 task 3: the sum of all lanes"); }
"""

import ast
import inspect
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from tinymlx import paths
from tinymlx.errors import UserError
from tinymlx.kernels import metal
from tinymlx.learn import metal_text

_FOLDER = re.compile(r"day(\d+)_(\w+)")
_MESSAGE = re.compile(r"(\d+\.\d+) task (\d+): (.+)", re.DOTALL)


@dataclass(frozen=True)
class Task:
    number: int
    title: str
    functions: tuple[str, ...]


@dataclass(frozen=True)
class Written:
    """A function of an exercise or of a learner's file. message: what an unwritten one says; None once it is written."""

    text: str
    message: str | None


@dataclass(frozen=True)
class Day:
    """One chapter: `number` is "1.1"; `folder` holds README.md, exercise.py, the tests and wrong answers."""

    number: str
    topic: str
    folder: Path
    suffix: ClassVar[str] = ".py"
    how_defined: ClassVar[str] = "`def {}(...)`"
    in_engine: ClassVar[bool] = True  # whether the engine runs its functions

    @property
    def exercise(self) -> Path:
        return self.folder / f"exercise{self.suffix}"

    @property
    def tests(self) -> Path:
        return self.folder / f"test_day{self.number.partition('.')[2]}.py"

    @property
    def mine(self) -> Path:
        """Where the learner's copy lies: my/week1/day1_attention.py in the current folder."""
        return Path("my") / self.folder.parent.name / f"{self.folder.name}{self.suffix}"

    @property
    def wrong_answers(self) -> list[Path]:
        return sorted((self.folder / "wrong").glob(f"*{self.suffix}"))

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        found: dict[int, list[tuple[str, str]]] = {}
        for name, function in self.read(self.exercise.read_text(encoding="utf-8")).items():
            if function.message and (parts := _MESSAGE.fullmatch(function.message)):
                found.setdefault(int(parts[2]), []).append((name, parts[3]))
        return tuple(
            Task(number, parts[0][1], tuple(name for name, _ in parts)) for number, parts in sorted(found.items())
        )

    def task(self, number: int) -> Task:
        for task in self.tasks:
            if task.number == number:
                return task
        raise UserError(f"day {self.number} has no task {number}; it has 1 to {len(self.tasks)}")

    def read(self, source: str) -> dict[str, Written]:
        """The functions at the top of a file's text. Raises SyntaxError."""
        lines = source.splitlines()
        return {
            name: Written("\n".join(lines[node.lineno - 1 : node.end_lineno]), stub_message(node))
            for name, node in functions_of(source).items()
        }

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

    def answer(self, name: str) -> tuple[str, str]:
        """The reference's source, and where it lives."""
        return inspect.getsource(self.reference(name)), f"{self.homes[name].__name__}.{name}"


@dataclass(frozen=True)
class MetalDay(Day):
    """A chapter whose functions are Metal. Their references stand in metal_kernels/, or where it has none, in the day's reference.metal."""

    suffix: ClassVar[str] = ".metal"
    how_defined: ClassVar[str] = "function {}"

    def read(self, source: str) -> dict[str, Written]:
        return {
            name: Written(
                "\n".join(f.text for f in parts), next((f.message for f in parts if f.message is not None), None)
            )
            for name, parts in metal_text.functions_of(source).items()
        }

    @cached_property
    def homes(self) -> dict[str, str]:
        """Function -> its file, relative to metal_kernels/; `own` for one of reference.metal."""
        marked = self.read(self.exercise.read_text(encoding="utf-8"))
        names = [name for name, function in marked.items() if function.message is not None]
        folder = paths.metal_kernels()
        files = [
            str(file.relative_to(folder))
            for place in (folder, folder / "include")
            for file in sorted(place.glob("*.metal"))
        ]
        known = {name: file for file in files for name in metal_text.functions_of(metal.text_of(file))}
        return {name: known.get(name, self.own) for name in names}

    @property
    def own(self) -> str:
        """The name under which reference.metal is overlaid: MetalKernel("day2_metal_puzzles", ...) calls its functions."""
        return f"{self.folder.name}.metal"

    @property
    def in_engine(self) -> bool:
        return set(self.homes.values()) != {self.own}

    def reference(self, name: str) -> list[metal_text.Function]:
        return metal_text.functions_of(self.text(self.homes[name]))[name]

    def answer(self, name: str) -> tuple[str, str]:
        return "\n".join(f.text for f in self.reference(name)), self.homes[name]

    def text(self, home: str) -> str:
        """Of the file with references, as it is in force."""
        if home == self.own and home not in dict(metal.overlays()):
            return (self.folder / "reference.metal").read_text(encoding="utf-8")
        return metal.text_of(home)

    def overlay(self, new: dict[str, metal_text.Replacement]) -> dict[str, str]:
        """For `metal.overlaid`: the files of these functions with `new` in them, and reference.metal if there is one."""
        changed: dict[str, dict[str, metal_text.Replacement]] = (
            {self.own: {}} if (self.folder / "reference.metal").is_file() else {}
        )
        for name, replacement in new.items():
            changed.setdefault(self.homes[name], {})[name] = replacement
        return {home: metal_text.replaced(self.text(home), Path(home).name, parts) for home, parts in changed.items()}


def all_days() -> list[Day]:
    """In the order of the course."""
    found = []
    for folder in paths.weeks().glob("week*/day*_*"):
        match = _FOLDER.fullmatch(folder.name)
        kind = next((kind for kind in (Day, MetalDay) if (folder / f"exercise{kind.suffix}").is_file()), None)
        if match and kind and (folder / "README.md").is_file():
            found.append(kind(f"{folder.parent.name.removeprefix('week')}.{match[1]}", match[2], folder))
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
