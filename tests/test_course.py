"""Chapters, exercises, wrong answers and the product cannot drift apart.

One process a day grades the untouched exercise, the reference and every wrong answer; the tests below read its report.
"""

import ast
import contextlib
import functools
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from tinymlx import cli
from tinymlx.errors import UserError
from tinymlx.kernels.host import compiler
from tinymlx.learn.chapters import blocks, hints, with_snippets
from tinymlx.learn.days import MetalDay, all_days, functions_of
from tinymlx.learn.metal_text import functions_of as metal_functions_of
from tinymlx.learn.subject import read_functions

pytestmark = pytest.mark.capability("course: exercises graded, chapters true")

ROOT = Path(__file__).resolve().parent.parent
DAYS = {day.number: day for day in all_days()}
SECTIONS = ["Shapes and data flow", "Cost", "Tasks", "In the engine", "What goes wrong", "Questions", "Reading"]
DAILY = pytest.mark.parametrize("number", DAYS)
WRONG = [
    pytest.param(day.number, file, id=f"{day.number}-{file.stem}")
    for day in DAYS.values()
    for file in day.wrong_answers
]


@functools.cache
def graded(number: str, tmp: Path) -> list[dict]:
    """Every outcome of a day: subject, task, test, outcome."""
    day, report = DAYS[number], tmp / f"report-{number}"
    subjects = ["exercise", "reference", *map(str, day.wrong_answers)]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        "--report",
        str(report),
        str(day.tests),
    ]
    for subject in subjects:
        command += ["--subject", subject]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTEST_ADDOPTS": ""})
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]  # the exercise fails
    return [record for line in report.read_text().splitlines() if "outcome" in (record := json.loads(line))]


@pytest.fixture
def outcomes(number, tmp_path_factory):
    if isinstance(DAYS[number], MetalDay):
        try:
            compiler.native()
        except UserError as error:
            pytest.skip(str(error))
    return graded(number, tmp_path_factory.getbasetemp())


# Exercises and product


@DAILY
def test_signatures_are_the_products(number):
    day = DAYS[number]
    assert [task.number for task in day.tasks] == list(range(1, len(day.tasks) + 1))
    if isinstance(day, MetalDay):
        for name, parts in metal_functions_of(day.exercise.read_text()).items():
            if name in day.homes:  # without a marker it is a helper
                assert [part.signature for part in parts] == [part.signature for part in day.reference(name)], name
                assert all(part.text.startswith("//") for part in parts), f"no comment above {name}"
        return
    stubs = functions_of(day.exercise.read_text())
    assert stubs.keys() == day.homes.keys() == {name for task in day.tasks for name in task.functions}
    for name, stub in stubs.items():
        reference = functions_of(inspect.getsource(day.reference(name)))[name]
        assert ast.unparse(stub.args) == ast.unparse(reference.args), name
        assert ast.unparse(stub.returns) == ast.unparse(reference.returns), name
        assert ast.get_docstring(stub), f"{name} has no docstring"


@pytest.mark.full
@DAILY
def test_the_untouched_exercise_passes_nothing_and_says_what_is_missing(number, outcomes):
    day = DAYS[number]
    records = [r for r in outcomes if r["subject"] == "exercise"]
    assert {r["task"] for r in records} == {task.number for task in day.tasks}
    for record in records:  # all other tasks are the product's: each group fails when only its own task is missing
        assert record["outcome"] == "missing", record
        assert record["what"].startswith(f"{number} task {record['task']}: "), record


@pytest.mark.full  # `pytest weeks` is in the short run
@DAILY
def test_the_reference_passes_everything(number, outcomes):
    records = [r for r in outcomes if r["subject"] == "reference"]
    assert {r["task"] for r in records} == {task.number for task in DAYS[number].tasks}
    assert [r for r in records if r["outcome"] != "passed"] == []
    assert all(r["about"] for r in records), "a test without a docstring tells nobody why it fails"


@pytest.mark.full
@pytest.mark.parametrize("number, file", WRONG)
def test_a_wrong_answer_is_caught_by_the_test_it_names(number, file, outcomes):
    day = DAYS[number]
    task = int(file.stem.partition("_")[0])
    named = re.search(r"^(?:// )?caught by: (\w+::\w+)$", file.read_text(), re.MULTILINE)[1]
    assert read_functions(day, file).keys() <= set(day.task(task).functions)
    records = [r for r in outcomes if r["subject"] == str(file)]
    assert {r["task"] for r in records} == {task}
    failed = [r for r in records if r["outcome"] != "passed"]
    assert any(r["test"] == named and r["outcome"] in ("wrong", "error") for r in failed), [r["test"] for r in failed]


@DAILY
def test_there_are_three_wrong_answers_and_two_hints_for_every_task(number):
    day, given = DAYS[number], hints(DAYS[number])
    for task in day.tasks:
        assert sum(f.stem.startswith(f"{task.number}_") for f in day.wrong_answers) >= 3, task
        assert len(given.get(task.number, [])) >= 2, task
        assert not any("$" in hint for hint in given[task.number]), "hints are shown in a terminal: `x`, not $x$"


# Chapters


def chapter(number: str) -> str:
    return (DAYS[number].folder / "README.md").read_text(encoding="utf-8")


@DAILY
def test_a_chapter_has_its_parts(number):
    text = chapter(number)
    assert text.startswith(f"# {number} ")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [h for h in headings if h in SECTIONS] == SECTIONS
    plain = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)  # hints and answers come on top
    plain = re.sub(r"^```.*?^```$|^\|[^\n]*$|<!--.*?-->|\$\$.*?\$\$", "", plain, flags=re.MULTILINE | re.DOTALL)
    plain = re.sub(r"[#*`|$\\]", " ", plain)
    assert 700 <= len(plain.split()) <= 1500, len(plain.split())
    questions = text[text.index("## Questions") : text.index("## Reading")]
    assert questions.count("<summary>Answer</summary>") == 5
    for task in DAYS[number].tasks:
        assert f"tinymlx learn check {number} --task {task.number}" in text
        assert all(name in text for name in task.functions)
    if DAYS[number].in_engine:
        assert f"tinymlx learn run {number}" in text and f"tinymlx chat --mine {number}" in text
    assert str(DAYS[number].mine) in text


@DAILY
def test_snippets_are_the_products(number):
    text = chapter(number)
    assert "<!-- product: " in text
    assert with_snippets(text) == text, "tinymlx.learn.chapters.with_snippets gives the current text"


@DAILY
def test_the_code_of_a_chapter_runs_and_prints_what_it_says(number, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = list(blocks(DAYS[number].folder / "README.md"))
    text, names, compared = chapter(number), {}, 0
    marked = re.findall(r"<!-- product: [\w.]+ -->\n", text)
    snippets = {text.count("\n", 0, text.index(mark)) + 2 for mark in marked}
    for block, following in zip(found, [*found[1:], None]):
        if block.language != "python" or block.options == "norun" or block.line in snippets:
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block.text, f"{number} line {block.line}", "exec"), names)
        if following and following.language == "text":
            between = text.split("\n")[block.line + block.text.count("\n") + 1 : following.line - 1]
            if not any(line.strip() for line in between):
                assert out.getvalue() == following.text, f"line {following.line}"
                compared += 1
    assert compared, "no block of the cost model prints its figures"


@DAILY
def test_the_commands_of_a_chapter_exist(number):
    lines = [
        line
        for block in blocks(DAYS[number].folder / "README.md")
        if block.language == "sh"
        for line in block.text.splitlines()
    ]
    inline = re.findall(r"`(tinymlx [^`]+)`", chapter(number))
    assert lines
    for line in [*lines, *inline]:
        words = [word for word in shlex.split(line, comments=True) if "..." not in word]
        if not words:
            continue
        assert words[0] in ("tinymlx", "pytest", "python"), line
        if words[0] == "tinymlx":
            check_command(cli.group, words[1:], line)


def check_command(command: click.Command, words: list[str], line: str) -> None:
    """Walks down to the subcommand and lets click parse its options."""
    while isinstance(command, click.Group) and words:
        inner = command.get_command(click.Context(command), words[0])
        assert inner is not None, line
        command, words = inner, words[1:]
    if words:
        command.make_context("tinymlx", [*words])


@DAILY
def test_links_of_a_chapter_lead_somewhere(number):
    folder = DAYS[number].folder
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", chapter(number))
    assert "figure.svg" in targets
    for target in targets:
        assert target.startswith("https://") or (folder / target).exists(), target


@DAILY
def test_the_figure_is_a_drawing_of_its_own(number):
    figure = ElementTree.parse(DAYS[number].folder / "figure.svg").getroot()
    assert figure.tag.endswith("svg") and figure.get("viewBox")
    text = ElementTree.tostring(figure, encoding="unicode")
    assert len(text) > 1000 and "href" not in text.replace("xmlns:xlink", "") and "<image" not in text


def test_the_map_shows_the_days_that_there_are():
    text = (ROOT / "weeks" / "README.md").read_text()
    for day in DAYS.values():
        assert f"({day.folder.relative_to(ROOT / 'weeks')}/README.md)" in text, day.number
    shown = set(re.findall(r"\((week\d+/day\d+_\w+)/README\.md\)", text))
    assert shown == {str(day.folder.relative_to(ROOT / "weeks")) for day in DAYS.values()}
