"""The pytest side of the course: whose functions are graded (`--subject`), fresh draws, and a report for the verdict.

A chapter's tests stand in classes named after their task (`class TestTask2Attention`) and use these fixtures:

    subject   the product's functions, with those of the class's task taken from --subject
              (of a Metal day: `subject.run(wrapper, ...)`, see subject.MetalSubject)
    draw      draw(2, 3, dtype=mx.float16) -> normal numbers, new in each run; the same again with --seed
    rng       a NumPy generator for other draws
"""

import functools
import json
import re
import secrets
import signal
import zlib
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from tinymlx.errors import UserError
from tinymlx.kernels.host import compiler
from tinymlx.learn.days import MetalDay, all_days
from tinymlx.learn.grading import Wrong
from tinymlx.learn.subject import MetalSubject, Subject, describe, grafted, load_functions, read_functions, where

_PRINTED = 1000  # characters of what the learner's code printed, from the end
_CLASS = re.compile(r"TestTask(\d+)")


def pytest_addoption(parser):
    group = parser.getgroup("course")
    group.addoption(
        "--subject",
        action="append",
        metavar="reference|exercise|PATH",
        help="whose functions the chapters' tests grade; repeatable; default: reference, which is the product",
    )
    group.addoption("--tasks", metavar="1,3", help="only the tests of these tasks")
    group.addoption("--seed", type=int, help="repeat the draws of an earlier run")
    group.addoption("--stop-after", type=int, metavar="SECONDS", help="die after that many seconds")
    group.addoption("--report", metavar="FILE", help="write each outcome there, as JSON lines")


def pytest_configure(config):
    seed = config.getoption("--seed")
    if seed is not None and seed < 0:
        raise pytest.UsageError("--seed must be 0 or more")
    for source in config.getoption("--subject") or ():
        if source not in ("reference", "exercise") and not Path(source).is_file():
            raise pytest.UsageError(f"--subject {source!r} is neither reference nor exercise nor a file")
    if config.getoption("--stop-after"):
        # Whoever started this may be gone by then: the default action ends the process even within C code.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(config.getoption("--stop-after"))
    config.course_seed = secrets.randbits(32) if seed is None else seed
    if config.getoption("--report"):
        config.pluginmanager.register(_Report(Path(config.getoption("--report"))))


def pytest_collection_modifyitems(config, items):
    if config.getoption("--tasks"):
        chosen = set(map(int, config.getoption("--tasks").split(",")))
        items[:] = [item for item in items if _task_of(item.cls) in chosen]


def pytest_report_header(config):
    return f"draws of the course: --seed {config.course_seed}"


@functools.cache
def _day_of(folder: Path):
    return next((day for day in all_days() if day.folder == folder), None)


def _task_of(cls) -> int | None:
    match = _CLASS.match(cls.__name__) if cls else None
    return int(match[1]) if match else None


def _file_of(source: str, day) -> Path | None:
    """None for the reference."""
    return {"reference": None, "exercise": day.exercise}.get(source, Path(source))


def _wanted(day, task: int | None) -> set[str]:
    return set(day.task(task).functions) if task else set()


def pytest_generate_tests(metafunc):
    """One run of a test for each subject that has something to grade in its task."""
    if "subject" not in metafunc.fixturenames:
        return
    day = _day_of(Path(metafunc.definition.path).parent)
    wanted = _wanted(day, _task_of(metafunc.cls))
    sources = []
    for source in metafunc.config.getoption("--subject") or ["reference"]:
        file = _file_of(source, day)
        try:
            has = file is None or (file.suffix == day.suffix and wanted & read_functions(day, file).keys())
        except UserError as error:
            raise pytest.UsageError(str(error)) from None
        if has:
            sources.append(source)
    metafunc.parametrize("subject", sources, indirect=True, ids=[Path(source).stem for source in sources])


@pytest.fixture
def subject(request):
    day = _day_of(request.path.parent)
    source = request.param
    file = _file_of(source, day)
    wanted = _wanted(day, _task_of(request.cls))
    try:
        mine = load_functions(day, file, wanted) if file else {}
    except UserError as error:
        raise Wrong(str(error)) from None
    if isinstance(day, MetalDay):
        try:
            compiler.native()
        except UserError as error:
            pytest.skip(str(error))
        written = read_functions(day, file) if file else {}
        for message in (written[name] for name in mine if written[name] is not None):
            raise NotImplementedError(message)
        yield MetalSubject(day.overlay(mine), file)
        return
    with grafted(day, mine):
        functions = {name: mine.get(name) or day.reference(name) for name in day.homes}
        yield Subject(day, functions, lambda name: Wrong(f"{name} changed an array, list or dict that it was given"))


@pytest.fixture
def rng(request) -> np.random.Generator:
    name = request.node.nodeid.replace(f"[{request.node.callspec.id}]", "") if hasattr(request.node, "callspec") else ""
    return np.random.default_rng([request.config.course_seed, zlib.crc32(name.encode())])


@pytest.fixture
def draw(rng):
    def normal(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
        return mx.array(rng.standard_normal(shape).astype(np.float32)).astype(dtype)

    return normal


class _Report:
    """One JSON line a test: subject, task, test, outcome (passed, wrong, missing, error), and what is known of a failure."""

    def __init__(self, file: Path):
        self.file = file
        file.write_text("")

    def _write(self, record: dict) -> None:
        with self.file.open("a") as out:
            out.write(json.dumps(record) + "\n")

    def pytest_runtest_setup(self, item):
        self._write({"started": item.name, "task": _task_of(item.cls)})  # what hangs or dies, did so last

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if "subject" in getattr(item, "fixturenames", ()) and (report.when == "call" or report.failed):
            params = getattr(item, "callspec", None)
            source = params.params.get("subject", "reference") if params else "reference"
            record = {
                "subject": source,
                "task": _task_of(item.cls),
                "test": f"{item.cls.__name__}::{item.originalname}" if item.cls else item.originalname,
                "case": item.name,
                "about": " ".join((item.function.__doc__ or "").split()),
                "seconds": round(report.duration, 3),
                "seed": item.config.course_seed,
                "printed": report.capstdout[-_PRINTED:],
                **self._outcome(item, call, report, source),
            }
            self._write(record)
        return report

    @staticmethod
    def _outcome(item, call, report, source) -> dict:
        if report.passed:
            return {"outcome": "passed"}
        if report.skipped:
            return {"outcome": "error", "what": f"skipped: {call.excinfo.value}"}
        error = call.excinfo.value
        if isinstance(error, Wrong):
            return {"outcome": "wrong", **error.facts}
        if isinstance(error, NotImplementedError):
            return {"outcome": "missing", "what": str(error)}
        file = _file_of(source, _day_of(item.path.parent))
        return {"outcome": "error", "what": describe(error), "at": (file and where(error, file)) or ""}
