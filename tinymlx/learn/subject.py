"""Somebody's functions in the place of the product's: for a test, or inside the running engine."""

import contextlib
import copy
import functools
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np

from tinymlx import kernels, paths
from tinymlx.engine import Stopped
from tinymlx.errors import UserError
from tinymlx.kernels import metal
from tinymlx.kernels.host import Finding, Traffic
from tinymlx.learn import metal_text
from tinymlx.learn.days import Day, MetalDay
from tinymlx.learn.grading import Wrong

HANG_S = 5.0  # of computing time, for one launch of a kernel that is graded


class Subject:
    """What a test grades: `subject.softmax(scores)`. Names that are not of the day come from the product's modules beside them."""

    def __init__(self, day: Day, functions: Mapping[str, Callable], changed: Callable[[str], Exception] | None = None):
        """changed: what to raise for a function, by name, that changed its arguments. None: nobody looks."""
        self._day, self._functions = day, dict(functions)
        if changed:
            self._functions = {name: keeping_arguments(f, changed(name)) for name, f in self._functions.items()}

    def __getattr__(self, name: str) -> Any:
        if name in self._functions:
            return self._functions[name]
        for home in self._day.homes.values():
            if hasattr(home, name):
                return getattr(home, name)
        raise AttributeError(f"day {self._day.number} has no {name}")


class MetalSubject:
    """What a test of a Metal day grades: `y = subject.run(rms_norm, x, weight, eps)`, a wrapper of the product, or any `MetalKernel`."""

    def __init__(self, texts: Mapping[str, str], file: Path | None = None):
        """texts: the files that are overlaid, the functions to grade in them; file: where these stand."""
        self._texts, self._file = texts, file
        self.reports: list = []  # the host checker's, one for each launch of the last run

    def run(self, wrapper: Callable, *args: Any, **kwargs: Any) -> Any:
        """wrapper(...), all its launches on the CPU and watched. Raises Wrong for what the checker finds."""
        with metal.overlaid(self._texts), metal.host_checked(seconds=HANG_S) as self.reports:
            result = wrapper(*args, **kwargs)
            mx.eval(result)
        # A race explains the value that was read too early.
        findings = sorted((f for report in self.reports for f in report.findings), key=lambda f: f.kind != "race")
        if findings:
            notes = dict.fromkeys([*self._shown(findings[0]), *map(str, findings[1:3])])
            raise Wrong(str(findings[0]), note="\n".join(notes))
        return result

    def assert_stored_once(self) -> None:
        """Demands that in the last run no two threads stored the same value in one place: harmless, but work in vain. Raises Wrong."""
        for note in (note for report in self.reports for note in report.notes):
            raise Wrong(f"stored more than once: {note}", note="\n".join(dict.fromkeys(self._shown(note))))

    def _shown(self, finding: Finding) -> Iterator[str]:
        """The learner's lines that a finding names, or that call the product's lines that it names."""
        if self._file is None:
            return
        lines = self._file.read_text(encoding="utf-8").splitlines()
        for place in (p for p in (finding.place, finding.other) if p and p.line):
            calls = [(place.file, place.line), *place.callers]
            mine = next((i for i, (file, _) in enumerate(calls) if file == str(self._file)), None)
            if mine != 0:
                yield _of_product(*calls[mine - 1 if mine else 0]) + (", from here:" if mine else "")
            if mine is not None and (line := calls[mine][1]) <= len(lines):
                yield f"{line}: {lines[line - 1].strip()}"

    @property
    def traffic(self) -> dict[str, Traffic]:
        """Bytes by the buffer's name, of all launches of the last run together."""
        total: dict[str, Traffic] = {}
        for name, t in (item for report in self.reports for item in report.traffic.items()):
            s = total.get(name, Traffic(0, 0, 0, 0))
            total[name] = Traffic(max(s.size, t.size), s.read + t.read, s.distinct + t.distinct, s.written + t.written)
        return total


def _of_product(name: str, line: int) -> str:
    """That a line of a file is not the learner's, and which parameters of its function stand in it."""
    folder, said = paths.metal_kernels(), f"{name}:{line} is not yours"
    for file in (folder / "include" / name, folder / name):
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        for f in (f for parts in metal_text.functions_of(text).values() for f in parts):
            if f.line <= line <= f.line + f.text.count("\n"):
                used = [p for p in f.parameters if re.search(rf"\b{p}\b", text.splitlines()[line - 1])]
                return f"{said}, but {f.name}'s: look at what reaches it" + (f" as {', '.join(used)}" if used else "")
    return f"{said}: look at what your functions store and return"


def keeping_arguments(function: Callable, error: Exception) -> Callable:
    """`function`, raising `error` if an array, list or dict that it was given has changed: `a -= b` on an MLX array does that."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, mx.array):
            return a.shape == b.shape and a.dtype == b.dtype and mx.array_equal(a, b, equal_nan=True).item()
        if isinstance(a, np.ndarray):
            return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        items = (a.items(), b.items()) if isinstance(a, dict) else (enumerate(a), enumerate(b))
        return len(a) == len(b) and all(i == j and x is y for (i, x), (j, y) in zip(*items))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, mx.array | np.ndarray | list | dict)]
        before = [mx.array(a) if isinstance(a, mx.array) else copy.copy(a) for a in given]
        try:
            mx.eval([b for b in before if isinstance(b, mx.array)])
        except ValueError:  # while MLX traces, arrays have no values to compare
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        if not all(map(same, given, before)):
            raise error
        return result

    return call


def read_functions(day: Day, file: Path) -> dict[str, str | None]:
    """The day's functions that a file defines -> None, or the message of one that is not written yet.

    Raises UserError for a file that cannot be read or is no Python.
    """
    found = day.read(_source(day, file))
    return {name: found[name].message for name in day.homes if name in found}


def load_functions(day: Day, file: Path, wanted: set[str]) -> dict[str, Any]:
    """What `grafted` takes, of a file of Python or Metal. Raises UserError as `load_python` and `load_metal` do."""
    return (load_metal if isinstance(day, MetalDay) else load_python)(day, file, wanted)


def load_metal(day: MetalDay, file: Path, wanted: set[str]) -> dict[str, metal_text.Replacement]:
    """The functions of `file` named in `wanted`; with them come its helpers, all that is no function of the day.

    Raises UserError for a file that cannot be read, or a signature that is not the reference's.
    """
    source = _source(day, file)
    found = metal_text.functions_of(source)
    for name in sorted(wanted & found.keys()):
        signatures, demanded = ([f.signature for f in parts] for parts in (found[name], day.reference(name)))
        if signatures != demanded:
            raise UserError(f"{file}:{found[name][0].line}: the signature of {name} must stay: {'; '.join(demanded)}")
    for name in metal_text.includes(source):
        if not (paths.metal_kernels() / "include" / name).is_file():
            raise UserError(f'{file}: there is no metal_kernels/include/{name}; leave #include "{name}" out')
    return metal_text.replacements(source, str(file), wanted & found.keys(), set(day.homes))


def load_python(day: Day, file: Path, wanted: set[str]) -> dict[str, Callable]:
    """Run `file` and return its functions named in `wanted`. What else it defines of the day is replaced by the product's.

    So each task is graded alone: a helper of another task that is not written yet, or wrong, does not matter. Raises UserError for a
    file that cannot be read or run, or a function whose parameters are not the product's.
    """
    source = _source(day, file)
    # A name of its own for each run: a traceback shows the text that ran, not what the file has become meanwhile.
    module = ModuleType(f"exercise_{day.number.replace('.', '_')}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    linecache.checkcache(str(file))
    try:
        exec(compile(source, str(file), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise UserError(f"{where(error, file) or file}: {describe(error)}") from None
    chosen = {}
    for name in day.homes:
        reference = day.reference(name)
        if name not in wanted:
            module.__dict__[name] = reference
        else:
            mine = module.__dict__.get(name)
            if not inspect.isfunction(inspect.unwrap(mine)):  # unwrapped: it may be cached
                raise UserError(f"{file}: {name} is {mine!r} in the end, not the function that `def {name}` made")
            if _parameters(mine) != _parameters(reference):
                raise UserError(f"{file}: {name}{inspect.signature(mine)} must take ({_parameters(reference)})")
            chosen[name] = mine
    return chosen


def _parameters(function: Callable) -> str:
    """Names, order, kinds and defaults, without annotations."""
    signature = inspect.signature(function)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(plain))[1:-1]


def _source(day: Day, file: Path) -> str:
    try:
        source = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        day.read(source) if isinstance(day, MetalDay) else compile(source, str(file), "exec")
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        line = f":{error.lineno}" if getattr(error, "lineno", None) else ""
        raise UserError(f"{file}{line}: {getattr(error, 'msg', None) or error}") from None
    return source


@contextlib.contextmanager
def grafted(day: Day, functions: Mapping[str, Any]) -> Iterator[None]:
    """The day's functions, as `load_functions` gives them, inside the product for a while."""
    with contextlib.ExitStack() as stack:
        if isinstance(day, MetalDay):
            stack.enter_context(metal.overlaid(day.overlay(functions)))
            functions = {}
        for name, function in functions.items():
            stack.enter_context(kernels.graft(day.homes[name], **{name: function}))
        yield


def describe(error: BaseException) -> str:
    """One line: the kind of an error and what it says."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def where(error: BaseException, file: Path) -> str | None:
    """The last line of `file` on the way to an error, as FILE:LINE; None if it does not come from there."""
    last, frame = None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(file):
            last = f"{file}:{frame.tb_lineno}"
        frame = frame.tb_next
    return last


def blaming(day: Day, name: str, function: Callable, file: Path) -> Callable:
    """`function` whose errors are one line that says whose they are: for the running engine, where a traceback would not help."""

    @contextlib.contextmanager
    def named() -> Iterator[None]:
        try:
            yield
        except (UserError, Stopped, KeyboardInterrupt, GeneratorExit):  # Stopped: Ctrl-C in the middle of a prefill
            raise
        except BaseException as error:  # sys.exit too
            place = where(error, file) or file
            line = f"your {name} of day {day.number}: {describe(error)} ({place}); tinymlx learn check {day.number}"
            raise UserError(line) from error

    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with named():
                yield from function(*args, **kwargs)
    else:

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with named():
                return function(*args, **kwargs)

    return call
