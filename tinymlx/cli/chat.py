"""tinymlx chat: a conversation in the terminal, or line by line from a pipe."""

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tinymlx.cli.options import sampling_params, shared_options
from tinymlx.errors import UserError

HELP = """/help            this list
/reset           forget the conversation
/system [TEXT]   set the system message (without TEXT: remove it) and start anew
/think on|off    Qwen3's thinking
/save FILE       write the conversation as JSON
/load FILE       go on with a saved one
/stats           figures of the last answer
/exit            leave (so does Ctrl-D); Ctrl-C stops an answer"""


@click.command()
@click.option(
    "--mine", metavar="DAYS", help="With your own functions of these days of the course inside, as in 1.1,1.4."
)
@shared_options("chat")
def command(mine: str | None, **flags: Any) -> None:
    """Chat with a model. Text piped in is answered line by line."""
    if mine is None:
        chat(flags)
        return
    from tinymlx.cli.assistant import mine_in_engine
    from tinymlx.learn.mine import written_days

    with mine_in_engine(written_days(mine)):
        chat(flags)


def chat(flags: dict[str, Any]) -> None:
    from tinymlx.cli.assistant import Assistant

    assistant = Assistant(flags)
    params = sampling_params(flags, assistant.generation_config)
    assistant.check(params)
    conversation = Conversation(assistant, assistant.load(), params, flags)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if interactive:
        click.secho(
            f"{flags['model']} · {conversation.session.max_context} tokens of context · /help for commands", dim=True
        )
    for line in lines(interactive):
        try:
            if not conversation.take(line):
                break
        except UserError as error:
            click.echo("error: " + " ".join(str(error).split()), err=True)
            if not interactive:
                raise SystemExit(1) from None


def lines(interactive: bool) -> Iterator[str]:
    """What the user types, with line editing and history, or the lines of a pipe."""
    if not interactive:
        for line in getattr(sys.stdin, "buffer", ()):
            yield line.decode("utf-8", "replace").rstrip("\r\n")
        return
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        history = FileHistory(str(history_file()))
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        history = InMemoryHistory()
    prompt = PromptSession(history=history)
    while True:
        try:
            yield prompt.prompt("> ")
        except KeyboardInterrupt:
            continue  # at the prompt Ctrl-C drops the line
        except EOFError:
            return


def history_file() -> Path:
    """Private to the user: what people ask is nobody else's business."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tinymlx"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / "chat_history"
    file.touch(mode=0o600)
    if not file.is_file():
        raise OSError(f"{file} is not a file")
    return file


class Conversation:
    """Messages so far, and what each typed line does to them."""

    def __init__(self, assistant: Any, session: Any, params: Any, flags: dict[str, Any]):
        self.assistant, self.session, self.params = assistant, session, params
        self.enable_thinking: bool | None = flags["enable_thinking"]
        self.verbose: bool = flags.get("verbose", False)
        self.system: str | None = flags["system_prompt"]
        self.messages: list[dict[str, str]] = []
        self.last_stats: Any = None

    def take(self, line: str) -> bool:
        """Obey a command or answer a question. Returns False when the chat is over."""
        line = line.strip()
        if not line:
            return True
        if not line.startswith("/"):
            self.answer(line)
            return True
        name, _, argument = line.partition(" ")
        argument = argument.strip()
        if name in ("/exit", "/quit"):
            return False
        commands = {
            "/help": self.help, "/reset": self.reset, "/system": self.set_system, "/think": self.think, "/save": self.save,
            "/load": self.load, "/stats": self.stats,
        }  # fmt: skip
        if name not in commands:
            click.echo(f"unknown command {name}; /help lists them", err=True)
        else:
            commands[name](argument)
        return True

    def help(self, _: str) -> None:
        click.echo(HELP)

    def reset(self, _: str) -> None:
        self.messages.clear()
        click.secho("forgotten", dim=True, err=True)

    def set_system(self, text: str) -> None:
        self.system = text or None
        self.messages.clear()
        click.secho(
            "system message " + ("set" if text else "removed") + "; the conversation starts anew", dim=True, err=True
        )

    def think(self, choice: str) -> None:
        if choice not in ("on", "off"):
            click.echo("/think on or /think off", err=True)
            return
        self.enable_thinking = choice == "on"
        click.secho(f"thinking {choice}", dim=True, err=True)

    def save(self, file: str) -> None:
        if not file:
            raise UserError("/save needs a file name")
        content = {"system": self.system, "messages": self.messages}
        partial = Path(f"{file}.partial").expanduser()
        try:
            partial.touch(mode=0o600)  # what people ask is nobody else's business
            partial.write_text(
                json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8", errors="replace"
            )
            partial.replace(Path(file).expanduser())
        except (OSError, RuntimeError) as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise UserError(f"{file} cannot be written: {getattr(error, 'strerror', None) or error}") from None
        click.secho(f"saved {len(self.messages)} messages", dim=True, err=True)

    def load(self, file: str) -> None:
        if not file:
            raise UserError("/load needs a file name")
        try:
            content = json.loads(Path(file).expanduser().read_text(encoding="utf-8"))
            system, messages = content["system"], content["messages"]
            saved = [{"role": message["role"], "content": message["content"]} for message in messages]
        except (OSError, RuntimeError) as error:
            raise UserError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        except (ValueError, TypeError, LookupError):
            raise UserError(f"{file} is not a conversation written by /save") from None
        alternating = (
            all(m["role"] == ("user", "assistant")[i % 2] for i, m in enumerate(saved)) and len(saved) % 2 == 0
        )
        if not alternating or not all(isinstance(text, str) for text in (system or "", *(m["content"] for m in saved))):
            raise UserError(f"{file} is not a conversation written by /save")
        self.system, self.messages = system, saved
        click.secho(f"loaded {len(saved)} messages", dim=True, err=True)

    def stats(self, _: str) -> None:
        from tinymlx.cli.report import summary

        click.echo(
            summary(self.last_stats)
            if self.last_stats
            else "no figures: the last answer was stopped, or there is none yet",
            err=True,
        )

    def answer(self, question: str) -> None:
        """Stream an answer. Stopped by Ctrl-C, what was said so far stays in the conversation."""
        from tinymlx.cli.assistant import show_prefill
        from tinymlx.engine import Stopped

        system = [{"role": "system", "content": self.system}] if self.system else []
        asked = [*self.messages, {"role": "user", "content": question}]
        rendered = self.assistant.render([*system, *asked], self.enable_thinking)
        prompt = self.assistant.tokenizer.encode(rendered)
        said, writer, finish = [], Writer(thinking=rendered.rstrip().endswith("<think>")), None
        self.last_stats = None
        with interruptible() as interrupted, show_prefill(interrupted) as on_prefill:
            stream = self.session.stream(prompt, self.params, on_prefill=on_prefill)
            try:
                for chunk in stream:
                    said.append(chunk.text)
                    writer.write(chunk.text)
                    self.last_stats, finish = chunk.stats, chunk.finish_reason
                    if interrupted():
                        break
            except Stopped:
                pass
            finally:
                stream.close()
                writer.end()
        if self.verbose:
            from tinymlx.cli.report import kernels_served

            click.secho("\n".join(kernels_served()), dim=True, err=True)
        if any(said):
            self.messages = [*asked, {"role": "assistant", "content": "".join(said)}]
        if sys.stderr.isatty():
            from tinymlx.cli.report import summary

            cut = (
                f"cut after {len(said)} tokens; --max-tokens and --max-kv-size allow more · "
                if finish == "length"
                else ""
            )
            click.secho(cut + summary(self.last_stats) if self.last_stats else "stopped", dim=True, err=True)


class Writer:
    """Streams text to standard output; what stands between <think> and </think> is dimmed on a terminal.

    thinking: whether the prompt has opened <think> already. A tag can arrive in pieces: what may be the beginning of one waits.
    """

    DIM, PLAIN = "\x1b[2m", "\x1b[0m"

    def __init__(self, thinking: bool = False, dims: bool | None = None) -> None:
        self.dims = sys.stdout.isatty() if dims is None else dims
        self._held, self._began = "", False
        if thinking and self.dims:
            sys.stdout.write(self.DIM)

    def write(self, text: str) -> None:
        self._began = True
        if self.dims:
            text = self._held + text
            tag = re.search(r"</?(t(h(i(nk?)?)?)?)?$", text)
            self._held = tag[0] if tag else ""
            text = text.removesuffix(self._held)
            text = text.replace("<think>", f"{self.DIM}<think>").replace("</think>", f"</think>{self.PLAIN}")
        sys.stdout.write(text)
        sys.stdout.flush()

    def end(self) -> None:
        """Ends the line, if there is one."""
        if self.dims:
            sys.stdout.write(self._held + self.PLAIN)
        if self._began:
            sys.stdout.write("\n")
        sys.stdout.flush()


@contextlib.contextmanager
def interruptible() -> Iterator:
    """Ctrl-C sets a flag, read between tokens, instead of tearing a step apart."""
    pressed = False

    def note(*_: Any) -> None:
        nonlocal pressed
        pressed = True

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, previous)
