"""`tinymlx learn`: starting, grading, hints, the answer, and the learner's functions inside the engine."""

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx
import psutil
import pytest
from click.testing import CliRunner
from one_line import fails
from tiny import write_checkpoint

from tinymlx import cli, kernels, ops, paths
from tinymlx.cache import KVView
from tinymlx.cli.learn import PROGRESS
from tinymlx.engine import Stopped
from tinymlx.errors import UserError
from tinymlx.kernels import metal
from tinymlx.learn import mine
from tinymlx.learn.check import check
from tinymlx.learn.days import MetalDay, all_days, find_day
from tinymlx.learn.grading import Wrong, assert_bytes
from tinymlx.learn.metal_text import functions_of
from tinymlx.learn.subject import MetalSubject, blaming, load_functions, read_functions

pytestmark = pytest.mark.capability("course: start, check, hint, diff, run")


needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="needs g++ or clang++")


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """An empty folder to learn in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def learn(*words, **options):
    return CliRunner().invoke(cli.group, ["learn", *words], **options)


def solved(number: str = "1.1", **changes: str) -> str:
    """The exercise with the product's functions in it; `changes` put other text in the place of some."""
    day = find_day(number)
    text = day.exercise.read_text()
    if isinstance(day, MetalDay):
        for name in day.homes:
            text = text.replace(day.read(text)[name].text, day.answer(name)[0])
        return text
    for name in day.homes:
        stub = re.search(rf"^def {name}\(.*?NotImplementedError\([^\n]*\n", text, re.MULTILINE | re.DOTALL)[0]
        text = text.replace(stub, changes.get(name) or inspect.getsource(day.reference(name)))
        text = f"{imports(day.reference(name), set(day.homes))}\n{text}"
    return text


def imports(function, others: set[str]) -> str:
    """What a product function needs of its module, as imports."""

    def names(code) -> set[str]:
        return set(code.co_names).union(*(names(c) for c in code.co_consts if inspect.iscode(c)))

    function = inspect.unwrap(function)
    module = inspect.getmodule(function)
    decorators = ast.walk(ast.parse(inspect.getsource(function)).body[0])
    used = names(function.__code__) | {node.id for node in decorators if isinstance(node, ast.Name)}
    needed = (used & vars(module).keys()) - others
    return "".join(f"from {module.__name__} import {name}\n" for name in sorted(needed))


def write(text: str, number: str = "1.1") -> Path:
    file = find_day(number).mine
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


SOFTMAX = "def softmax(scores: mx.array) -> tuple[mx.array, mx.array]:\n    "


def test_start_copies_once(desk):
    assert "write" in learn("start", "1.1").output
    file = find_day("1.1").mine
    assert file.read_text() == find_day("1.1").exercise.read_text()
    assert (desk / "my" / ".gitignore").read_text() == "*\n"
    file.write_text("# my work")
    assert "stays as it is" in learn("start", "1.1").output and file.read_text() == "# my work"


@pytest.mark.full
def test_list_shows_what_passed(desk):
    assert re.search(r"1\.1  Attention +○ ○ ○  not started", learn("list").output)
    write(solved())
    assert learn("check", "1.1").exit_code == 0
    assert re.search(r"1\.1  Attention +● ● ●\n", learn("list").output)
    write(solved(softmax=SOFTMAX + "return scores, scores[..., 0]\n"))
    assert learn("check", "1.1").exit_code == 1
    assert re.search(r"1\.1  Attention +○ ● ●\n", learn("list").output)
    PROGRESS.write_text("{damaged")
    assert learn("list").exit_code == 0


@pytest.mark.parametrize("number", [day.number for day in all_days()])
@pytest.mark.full
def test_the_products_functions_written_into_the_exercise_pass(desk, number):
    if isinstance(find_day(number), MetalDay) and not any(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("needs g++ or clang++")
    verdicts = check(find_day(number), write(solved(number), number))
    assert [v.state for v in verdicts] == ["passed"] * len(find_day(number).tasks), verdicts


@pytest.mark.full
def test_a_later_task_before_an_earlier_one(desk):
    text = find_day("1.1").exercise.read_text()
    text = re.sub(r"    raise NotImplementedError\(\"1.1 task 3[^\n]*", ATTENTION, text)
    assert [v.state for v in check(find_day("1.1"), write(text))] == ["missing", "missing", "passed"]


# Calls the other tasks' functions by their plain names, which are not written yet.
ATTENTION = """    weights, lse = softmax(attention_scores(q, k, scale=scale, mask=mask))
    return (weights @ v.astype(mx.float32)).astype(q.dtype), lse"""


def test_a_verdict_says_what_where_and_why(desk):
    write(solved(softmax=SOFTMAX + "e = mx.exp(scores)\n    return e / e.sum(-1, keepdims=True), mx.log(e.sum(-1))\n"))
    out = learn("check", "1.1", "--task", "1")
    assert out.exit_code == 1 and "Traceback" not in out.output
    for part in (
        "✗ task 1 softmax",
        "expected",
        "got",
        "at       [",
        "of shape [",
        "learn hint 1.1 --task 1",
        "--seed ",
    ):
        assert part in out.output, out.output
    assert "task 2" not in out.output
    seed = re.search(r"--seed (\d+)", out.output)[1]
    values = re.search(r"expected.*\n.*got.*\n.*at.*\n", learn("check", "1.1", "--task", "1", "--seed", seed).output)[0]
    assert values == re.search(r"expected.*\n.*got.*\n.*at.*\n", out.output)[0]


@pytest.mark.full
@pytest.mark.parametrize(
    "body, state, said",
    [
        ("return undefined, 1\n", "error", "NameError: name 'undefined' is not defined"),
        ("return 1, 2\n", "wrong", "weights is no MLX array"),
        ("return scores[..., None], scores[..., 0]\n", "wrong", "another shape"),
        ("import os; os.abort()\n", "stopped", "died of SIGABRT"),
        ("import os; os._exit(0)\n", "stopped", "ended the process"),
        ("import os; os._exit(3)\n", "stopped", "ended the process"),
        ("raise KeyboardInterrupt\n", "stopped", "ended the process"),
        ("import pytest; pytest.skip()\n", "error", "skipped"),
        ("import sys; sys.exit(0)\n", "error", ""),
        ("scores -= scores.max(axis=-1, keepdims=True)\n    return product(scores)\n", "wrong", "changed an array"),
        ("raise NotImplementedError\n", "missing", ""),
    ],
)
def test_whatever_a_function_does_the_other_tasks_are_graded(desk, body, state, said):
    text = "from tinymlx.ops import softmax as product\n" + solved(softmax=SOFTMAX + body)
    verdicts = check(find_day("1.1"), write(text))
    assert (verdicts[0].state == state or state == "stopped") and said in verdicts[0].first["what"]
    assert verdicts[0].state != "passed" and [v.state for v in verdicts[1:]] == ["passed", "passed"]


@pytest.mark.full
def test_a_loop_without_end_is_stopped(desk):
    verdicts = check(find_day("1.1"), write(solved(softmax=SOFTMAX + "while True: pass\n")), time_limit_s=4)
    assert verdicts[0].state == "stopped" and "a loop that does not end" in verdicts[0].first["what"]
    assert "--task 3" in verdicts[2].first["what"]


@pytest.mark.full
@pytest.mark.parametrize(
    "text, said",
    [
        ("def (", ":1: invalid syntax"),
        ("\0", "null byte"),
        ("import no_such_module\n", "ModuleNotFoundError"),
        ("1 / 0\n", "day1_attention.py:1: ZeroDivisionError"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_does_not_run_is_one_line(desk, text, said):
    file = write(text or "")
    if text is None:
        file.write_bytes(b"\xff\xfe")
    elif "(" not in text and "\0" not in text:
        file.write_text(text + solved())  # runs only when graded
        verdicts = check(find_day("1.1"), file)
        assert all(v.state != "passed" and said in v.first["what"] for v in verdicts)
        return
    fails(lambda: check(find_day("1.1"), file), said)


@pytest.mark.full
def test_a_function_that_is_gone_or_takes_something_else_is_named(desk):
    text = solved(softmax="def softmax(x, axis):\n    return x\n", attention_scores="pass\n")
    first, second, third = check(find_day("1.1"), write(text))
    assert "softmax(x, axis) must take (scores)" in first.first["what"]
    assert "there is no `def attention_scores(...)`" in second.first["what"]
    assert third.state == "passed"


@pytest.mark.parametrize(
    "words, said",
    [
        (["check", "1.1"], "tinymlx learn start 1.1"),
        (["check", "7.7"], "there is no day 7.7"),
        (["start", "x"], "there is no day x"),
        (["hint", "1.1", "--task", "9"], "has no task 9"),
        (["hint", "1.1", "--level", "9"], "2 hints"),
        (["diff", "1.1"], "tinymlx learn start 1.1"),
        (["run", "1.1", "-p", "hi"], "tinymlx learn start 1.1"),
        (["run", ",", "-p", "hi"], "no day is named"),
    ],
)
def test_wrong_use_is_one_line(desk, words, said):
    fails(lambda: learn(*words, catch_exceptions=False), said)


def test_a_hint_and_the_answer(desk):
    assert "row" in learn("hint", "1.1", "--task", "1").output
    learn("start", "1.1")
    refused = learn("diff", "1.1", input="n\n")
    assert refused.exit_code == 1 and "shows the answer" in refused.output and "exps" not in refused.output
    shown = learn("diff", "1.1", "--task", "1", "--yes").output
    assert "+    exps = mx.exp(scores - highest)" in shown and "attention_scores(" not in shown


@pytest.mark.full
@pytest.mark.parametrize("after", ["softmax = None\n", "softmax = max\n", "del softmax\n"])
def test_a_function_that_does_not_stay_is_no_answer(desk, after):
    first, second, _ = check(find_day("1.1"), write(solved() + after))
    assert first.state == "wrong" and "not the function that `def softmax` made" in first.first["what"]
    assert second.state == "passed"


@pytest.mark.full
def test_a_grader_that_is_left_alone_ends_by_itself(desk):
    write(solved(softmax=SOFTMAX + "while True: pass\n"))
    command = [sys.executable, "-m", "tinymlx", "learn", "check", "1.1", "--time-limit", "5"]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not (graders := psutil.Process(parent.pid).children()):
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    graders[0].wait(20)


@pytest.mark.full
def test_watch_grades_again_when_the_file_is_saved(desk):
    file = write(find_day("1.1").exercise.read_text())
    command = [sys.executable, "-m", "tinymlx", "learn", "check", "1.1", "--task", "2", "--watch"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        lines = iter(process.stdout.readline, "")
        assert any("not written yet" in line for line in lines)
        assert any("watching" in line for line in lines)
        file.write_text("def (")
        assert any("invalid syntax" in line for line in lines)
        file.write_text(solved())
        assert any("✓ task 2" in line for line in lines)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# In the engine


ZEROS = SOFTMAX + "return mx.zeros_like(scores), scores[..., 0]\n"


def test_grafts_reach_the_product_and_end(desk):
    write(solved(softmax=ZEROS))
    before, key = ops.softmax, kernels.compile_key()
    q = mx.ones((1, 2, 3, 8))
    with mine.mine_in_engine(mine.written_days("1.1")) as lines:
        assert lines == ["1.1 attention: your softmax, attention_scores, scaled_dot_product_attention"]
        assert kernels.compile_key() != key
        assert mx.all(kernels.attend(q, q, q, KVView.empty(1), scale=1.0)[0] == 0)
    assert ops.softmax is before and kernels.compile_key() == key


def test_what_is_not_written_is_the_products(desk):
    text = find_day("1.1").exercise.read_text()
    write(re.sub(r"    raise NotImplementedError\(\"1.1 task 3[^\n]*", ATTENTION, text))
    q = mx.random.normal((1, 2, 3, 8))
    want = ops.grouped_query_attention(q, q, q, scale=1.0)[0]
    with mine.mine_in_engine(mine.written_days("1.1")) as lines:
        assert lines[0].endswith("the product's softmax, attention_scores")
        assert mx.allclose(ops.grouped_query_attention(q, q, q, scale=1.0)[0], want)
    write(text)
    fails(lambda: mine.mine_in_engine(mine.written_days("1.1")).__enter__(), "nothing is written yet")


class TestInTheEngine:
    @pytest.fixture
    def model(self, desk):
        """A tiny model with a tokenizer and a chat template."""
        from small_tokenizers import gpt2_pre_tokenizer, train_byte_level

        tokenizer = train_byte_level(gpt2_pre_tokenizer())
        folder = write_checkpoint(desk / "model", vocab_size=640, seed=5)
        tokenizer.save(str(folder / "tokenizer.json"))
        template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        return str(folder)

    def test_run_says_whether_the_tokens_are_the_products(self, model):
        write(solved())
        out = learn("run", "1.1", "-p", "fox", "--model", model, "-m", "8", catch_exceptions=False)
        assert out.exit_code == 0 and "tokens as the product's" in out.output
        write(solved(softmax=ZEROS))
        out = learn("run", "1.1", "-p", "fox", "--model", model, "-m", "8", catch_exceptions=False)
        assert out.exit_code == 1 and "is not the product's" in out.output

    def test_an_error_in_the_engine_says_whose_it_is(self, model):
        write(solved(softmax=SOFTMAX + "return scores + undefined\n"))
        run = lambda: learn("run", "1.1", "-p", "fox", "--model", model, catch_exceptions=False)  # noqa: E731
        fails(run, "NameError: name 'undefined' is not defined (my/week1/day1_attention.py:")
        cut = find_day("1.1").exercise.read_text()
        write(re.sub(r"raise NotImplementedError\(.1.1 task 1.*", "return scores[..., :1], scores[..., 0]", cut))
        fails(run, "with your functions of 1.1 in it the engine failed")

    def test_chat_through_ones_own_functions(self, model):
        write(solved())
        words = ["chat", "--mine", "1.1", "--model", model, "-m", "5"]
        out = CliRunner().invoke(cli.group, words, input="fox\n", catch_exceptions=False)
        plain = CliRunner().invoke(cli.group, [*words[:1], *words[3:]], input="fox\n", catch_exceptions=False)
        assert out.exit_code == 0 and "your softmax" in out.stderr
        assert out.stdout == plain.stdout


def test_an_error_in_a_generator_is_named_and_a_stop_passes(desk):
    day, file = find_day("1.6"), Path("my/week1/day6_generating.py")

    def broken(advance, draw, limit, ahead):
        yield draw
        raise ZeroDivisionError("no")

    drawn = blaming(day, "decode", broken, file)(None, 7, 2, None)
    assert next(drawn) == 7
    fails(lambda: next(drawn), "your decode of day 1.6: ZeroDivisionError: no")

    def stopped(feed, prompt, start, step_size):
        raise Stopped

    with pytest.raises(Stopped):
        blaming(day, "prefill", stopped, file)(None, [], 0, 1)


# Metal days


@pytest.mark.parametrize(
    "text, names",
    [
        ("inline void f(int a) { if (a) { } }\nvoid g();\n", ["f"]),
        ("template <typename T, int N = (3 > 2)>\ninline T f(T a) { return a; } // }\n", ["f"]),
        ("struct S { int x; int get() { return x; } };\nint a = g(1), b[] = {1, 2};\n#define M(x) { x\n", []),
        ("[[max_total_threads_per_threadgroup(32)]] kernel void f(device T* y [[buffer(0)]]) { /* } */ }", ["f"]),
        ("constant int N = 3;\nvoid f() { char c = '{'; } void g() { static_assert(false, \"}\"); }", ["f", "g"]),
    ],
)
def test_functions_are_found_by_their_braces(text, names):
    found = functions_of(text)
    assert list(found) == names
    assert all(text[f.start : f.end] == f.text and f.text.endswith("}") for parts in found.values() for f in parts)


@pytest.mark.parametrize("text, line", [("void f() {\n", 1), ("\n}\n", 2)])
def test_braces_that_do_not_match_have_a_line(text, line):
    with pytest.raises(SyntaxError) as error:
        functions_of(text)
    assert error.value.lineno == line


class TestMetalDay:
    """A day whose one task is the product's rms_norm."""

    HEAD = "// Our norm.\n\ninline float square(float v) { return v * v; }\n\n"

    @pytest.fixture
    def day(self, desk):
        text = (paths.metal_kernels() / "rms_norm.metal").read_text()
        total, function = (functions_of(text)[name][0].text for name in ("sum_of_threadgroup", "rms_norm"))
        marker = '{ static_assert(false, "2.6 task 1: the norm"); }\n'
        (desk / "exercise.metal").write_text(f"{self.HEAD}// The norm.\n{function.partition('{')[0]}{marker}")
        answer = f"{self.HEAD}{total}\n\n{function}".replace("float(value) * float(value)", "square(float(value))")
        self.answer = answer.replace("sum_of_threadgroup", "sum_of_mine")  # a helper that is no function of the day
        return MetalDay("2.6", "norm", desk)

    def graded(self, day, text):
        """A subject that has run the product's wrapper once."""
        from tinymlx.kernels.rms_norm import rms_norm

        (file := day.folder / "mine.metal").write_text(text)
        subject = MetalSubject(day.overlay(load_functions(day, file, {"rms_norm"})), file)
        x = mx.random.normal((2, 512))
        y = subject.run(rms_norm, x, mx.ones(512), 1e-6)
        assert mx.allclose(y, ops.rms_norm(x, mx.ones(512), 1e-6), atol=1e-5)
        return subject

    def test_the_exercise_is_a_marker(self, day):
        assert [(t.number, t.title, t.functions) for t in day.tasks] == [(1, "the norm", ("rms_norm",))]
        assert day.homes == {"rms_norm": "rms_norm.metal"} and day.mine.suffix == ".metal"
        assert read_functions(day, day.exercise) == {"rms_norm": "2.6 task 1: the norm"}

    @needs_compiler
    def test_a_helper_comes_along_and_bytes_are_counted(self, day):
        subject = self.graded(day, self.answer)
        assert_bytes(subject.traffic["x"].read, 4096, 2, "x")
        with pytest.raises(Wrong, match="x: 2 times the bytes that are needed, more than the 1.5 allowed"):
            assert_bytes(subject.traffic["x"].read, 4096, 1.5, "x")

    @needs_compiler
    def test_a_race_names_both_lines_of_the_learners_file(self, day):
        text = self.answer.replace("  threadgroup_barrier(mem_flags::mem_threadgroup);\n", "")
        with pytest.raises(Wrong) as wrong:
            self.graded(day, text)
        lines = [i for i, line in enumerate(text.splitlines(), 1) if "partial[" in line]
        said = wrong.value.facts
        assert "race: thread" in said["what"] and all(f"mine.metal:{line}" in said["what"] for line in lines)
        assert f"{lines[1]}: total += partial[i];" in said["note"]

    @needs_compiler
    def test_a_line_of_the_products_names_the_call(self, day):
        text = '#include "load.metal"\n' + self.answer.replace(
            "v * v;", "v * v; }\ninline float first(const device float* p) { float to[8]; load8(p, to); return to[0];"
        )
        text = text.replace("square(float(value))", "square(float(value)) + first((const device float*)x + (1 << 12))")
        with pytest.raises(Wrong) as wrong:
            self.graded(day, text)
        line = next(i for i, line in enumerate(text.splitlines(), 1) if "load8" in line)
        said = wrong.value.facts
        assert "load.metal" in said["what"] and "load8's: look at what reaches it as from, from here:\n" in said["note"]
        assert f"\n{line}: inline float first" in said["note"]

    @needs_compiler
    def test_a_compile_error_names_the_line(self, day):
        with pytest.raises(Wrong, match=r"mine.metal:3: compile error: .*v_"):
            self.graded(day, self.answer.replace("v * v", "v * v_"))

    @needs_compiler
    def test_a_kernel_that_was_called_is_not_told_of(self, day):
        from tinymlx.kernels.rms_norm import rms_norm

        day.mine.parent.mkdir(parents=True)
        day.mine.write_text(self.answer)
        with mine.mine_in_engine([day]) as lines, metal.host_checked():
            rms_norm(mx.ones((2, 512)), mx.ones(512), 1e-6)
        assert len(lines) == 1

    def test_a_changed_signature_or_unknown_include_is_one_line(self, day):
        fails(
            lambda: self.graded(day, self.answer.replace("int K, uint row", "uint K, uint row")), "must stay: template"
        )
        fails(lambda: self.graded(day, '#include "no.metal"\n' + self.answer), "no metal_kernels/include/no.metal")

    def test_in_the_engine_our_kernels_are_asked_for(self, day, monkeypatch):
        monkeypatch.delenv("TINYMLX_KERNELS", raising=False)
        day.mine.parent.mkdir(parents=True)
        day.mine.write_text(self.answer)
        with mine.mine_in_engine([day]) as lines:
            assert lines == ["2.6 norm: your rms_norm"] and os.environ["TINYMLX_KERNELS"] == "ours"
            assert "square(float(value))" in metal.source("rms_norm")
        assert len(lines) == 2 and "your functions of 2.6 were not called" in lines[1]
        assert "TINYMLX_KERNELS" not in os.environ and "square(" not in metal.source("rms_norm")


@pytest.mark.full
def test_an_installed_wheel_can_start_and_check(desk):
    """From a wheel's folder, without the checkout."""
    from test_house import build

    (wheel,) = build(desk / "dist", "wheel")
    site = desk / "site"
    shutil.unpack_archive(wheel, site, "zip")
    run = lambda *words: subprocess.run(  # noqa: E731
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(site)!r}); from tinymlx.cli import main; main()",
            "learn",
            *words,
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    started = run("start", "1.1")
    assert "write" in started.stdout and str(site) not in started.stderr, started.stderr
    write(solved())
    done = run("check", "1.1")
    assert done.returncode == 0 and "✓ task 3" in done.stdout, done.stdout + done.stderr


def test_grading_without_pytest_says_what_to_install(desk, monkeypatch):
    monkeypatch.setattr("tinymlx.learn.check.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install pytest"):
        check(find_day("1.1"), write(solved()))


def test_the_site_holds_every_chapter_and_fetches_nothing(desk):
    out = learn("site", catch_exceptions=False).output.strip()
    pages = {page.name: page.read_text() for page in Path(out).parent.glob("*.html")}
    assert len(pages) == 1 + len(all_days())
    for name, page in pages.items():
        for target in re.findall(r'(?:href|src)="([^"]+)"', page):
            file, _, anchor = target.partition("#")
            if file.startswith("https://"):
                assert f'<a href="{target}"' in page  # only links that a reader follows
            elif file:
                assert (Path(out).parent / file).is_file(), target
            assert not anchor or file.startswith("https://") or f'id="{anchor}"' in pages[file or name], target
        text = re.sub(r"<(pre|code)\b.*?</\1>", "", page, flags=re.DOTALL)
        assert "<script" not in page and "$" not in text and "```" not in page and "\\frac" not in page, name
    assert "<math" in pages["1.1-attention.html"] and "<table>" in pages["1.1-attention.html"]
    (desk / "file").touch()
    fails(lambda: learn("site", "--out", "file", catch_exceptions=False), "name another folder")
