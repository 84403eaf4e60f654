"""Grading a learner's file: the chapter's tests in a process of their own, under a time limit."""

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinymlx.errors import UserError
from tinymlx.kernels.host import compiler
from tinymlx.learn.days import Day, MetalDay, Task
from tinymlx.learn.subject import read_functions

TIME_LIMIT_S = 60.0
_ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",  # two spin for 20 ms a product once anything else runs
    "MLX_ENABLE_TF32": "0",  # on CUDA float32 products keep 10 bits otherwise, and references are float64
    "PYTEST_ADDOPTS": "",
}


@dataclass
class Verdict:
    """What became of one task. `state`: "passed", "missing" (not written yet), "wrong", "error" (it raised), "stopped" (time, crash)."""

    task: Task
    state: str
    tests: int = 0
    failed: int = 0
    seconds: float = 0.0
    first: dict[str, Any] = field(default_factory=dict)
    """The first failing test's record: test, about, what, expected, got, at, seed."""


def check(
    day: Day, file: Path, *, task: int | None = None, seed: int | None = None, time_limit_s: float = TIME_LIMIT_S
) -> list[Verdict]:
    """A verdict for each task of the day, or for one of them. Raises UserError for a file that is no Python, or without pytest;
    for a Metal day also without a C++ compiler.
    """
    if importlib.util.find_spec("pytest") is None:
        raise UserError("grading needs pytest; pip install pytest")
    if isinstance(day, MetalDay):
        compiler.native()
    tasks = [day.task(task)] if task else list(day.tasks)
    written = read_functions(day, file)
    verdicts = {t.number: Verdict(t, "missing") for t in tasks}
    for t in tasks:
        gone = [name for name in t.functions if name not in written]
        messages = [written[name] for name in t.functions if written.get(name)]
        if gone:
            verdicts[t.number].first = {"what": f"there is no {day.how_defined.format(gone[0])} at the top of {file}"}
        elif messages:
            verdicts[t.number].first = {"what": messages[0]}
    ready = [t for t in tasks if not verdicts[t.number].first]
    began = time.monotonic()
    while ready:
        left = time_limit_s - (time.monotonic() - began)
        if left < 1:
            for t in ready:
                reason = (
                    f"not run: the {time_limit_s:.0f} s were used up before it; check it alone with --task {t.number}"
                )
                verdicts[t.number] = Verdict(t, "stopped", first={"what": reason})
            break
        records, end = _run(day, file, ready, seed, left)
        last = next((r["task"] for r in reversed(records) if "started" in r), ready[0].number)
        for t in ready:
            if end is None or t.number <= last:
                done = [r for r in records if r["task"] == t.number and "outcome" in r]
                verdicts[t.number] = _verdict(t, done, end if t.number == last else None)
        ready = [t for t in ready if end and t.number > last]  # what came after the test that hung or died
    return list(verdicts.values())


def _verdict(task: Task, records: list[dict[str, Any]], end: str | None) -> Verdict:
    """end: why its tests did not run to their end, None if they did."""
    failures = [r for r in records if r["outcome"] != "passed"]
    verdict = Verdict(task, "passed", len(records), len(failures), sum(r["seconds"] for r in records))
    if failures:
        verdict.first = failures[0]  # a chapter's tests go from the plain case to the special ones
        verdict.state = verdict.first["outcome"]
    elif end or not records:
        verdict.state, verdict.first = "stopped", {"what": end or "no test ran"}
    return verdict


def _run(day: Day, file: Path, tasks: list[Task], seed: int | None, time_limit_s: float) -> tuple[list, str | None]:
    """Each test's record, and why the run ended early (None: it did not)."""
    with tempfile.TemporaryDirectory(prefix="tinymlx-check-") as scratch:
        report = Path(scratch) / "report"
        command = [
            sys.executable, "-P", "-m", "pytest", "-q", "--noconftest", "-p", "tinymlx.learn.plugin", "-p", "no:cacheprovider",
            "-c", os.devnull, "--rootdir", str(day.folder), "--import-mode", "importlib",
            "--tasks", ",".join(str(t.number) for t in tasks),
            "--subject", str(file.resolve()), "--report", str(report),
            "--stop-after", str(math.ceil(time_limit_s) + 5), str(day.tests),
        ]  # fmt: skip
        if seed is not None:
            command += ["--seed", str(seed)]
        environment = {**os.environ, **_ENVIRONMENT}
        # A session of its own, so that what the learner's code starts ends with it.
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        began, end = time.monotonic(), None
        try:
            output, _ = process.communicate(timeout=time_limit_s)
        except subprocess.TimeoutExpired:
            end = f"stopped after {time.monotonic() - began:.0f} s; is there a loop that does not end? --time-limit gives it more"
            output = b""
        finally:
            _kill(process)
        records = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
        for record in records:
            for key, value in record.items():
                if isinstance(value, str):
                    record[key] = value.replace(str(file.resolve()), str(file))
        if end is None and process.returncode < 0:
            end = f"the process died of {signal.Signals(-process.returncode).name} in your code"
        if end is None and records and "started" in records[-1]:
            end = "your code ended the process (exit, or an interrupt)"
        if end is None and process.returncode not in (0, 1):
            raise UserError(f"the tests of day {day.number} did not run: {_last_line(output)}")
        return records, end


def _kill(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    if process.stdout:
        process.stdout.close()


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "no output"
