"""Opening a model for `generate` and `chat`: find it, prove that it fits, load it with a progress bar."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinymlx.errors import UserError

if TYPE_CHECKING:
    from tinymlx.engine import SamplingParams, Session


class Assistant:
    """A model to talk to. Made, it has read headers, tokenizer and template; `load` proves that the weights fit and reads them.

    flags: those of `options.shared_options`.
    """

    def __init__(self, flags: Mapping[str, Any]):
        from tinymlx.hub import resolve
        from tinymlx.hub.checkpoint import open_checkpoint
        from tinymlx.hub.tokenizer import load_tokenizer
        from tinymlx.kernels import grafted_in
        from tinymlx.models.adapters import Adapter
        from tinymlx.models.load import read_config

        self.flags = flags
        source = resolve(flags["model"])
        self.checkpoint = open_checkpoint(source)
        self.config = read_config(self.checkpoint)
        self.tokenizer = load_tokenizer(source, readable=grafted_in("tinymlx.hub.bpe"))
        self.generation_config = self.checkpoint.generation_config
        self.max_context = flags["max_kv_size"] or self.config.max_context
        if self.max_context > self.config.max_context:
            raise UserError(
                f"--max-kv-size {self.max_context} is more than the {self.config.max_context} tokens this model was made for"
            )
        self.adapter_bytes = (
            Adapter(Path(flags["adapter_path"]), self.config).nbytes if flags["adapter_path"] is not None else 0
        )

    def render(self, messages: list[dict[str, Any]], enable_thinking: bool | None) -> str:
        """A conversation that ends with a question, as text up to where the answer begins."""
        options = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        return self.tokenizer.apply_chat_template(messages, **options)

    def check(self, params: SamplingParams, prompt: list[int] | None = None) -> None:
        """Raises UserError for what flags and prompt alone can be refused for, before the weights are read."""
        from tinymlx.engine.generate import check_prompt
        from tinymlx.engine.sampling import Sampler

        Sampler([params], min(self.tokenizer.vocab_size, self.config.vocab_size))
        if prompt is not None:
            check_prompt(prompt, self.max_context, self.config.vocab_size)

    def load(self, context: int | None = None) -> Session:
        """Read the weights. context: tokens that must fit; default --max-kv-size, or as many as the model and the memory allow.

        Raises UserError with the numbers, before anything is read, when weights and cache do not fit.
        """
        from tinymlx.engine import Session
        from tinymlx.hub.progress import byte_bar
        from tinymlx.memory import plan
        from tinymlx.memory.machine import inspect
        from tinymlx.models.load import load_model, memory_request

        flags = self.flags
        wanted = min(context, self.max_context) if context else flags["max_kv_size"]
        machine = inspect(isolated=False)
        request = memory_request(self.checkpoint, self.config)
        request |= {"backend": machine.backend, "prefill_step_size": flags["prefill_step_size"]}
        request["weight_bytes"] += self.adapter_bytes
        chosen = plan.fit(plan.limit_bytes(machine), most=self.max_context, wanted=wanted, **request)
        plan.apply_limits(chosen, machine)
        with byte_bar("loading") as progress:
            model = load_model(self.checkpoint, adapter_path=flags["adapter_path"], progress=progress)
        return Session(model, self.tokenizer, max_context=chosen.context, prefill_step_size=flags["prefill_step_size"])


@contextlib.contextmanager
def mine_in_engine(days: list) -> Iterator[None]:
    """The learner's functions in the engine, named on standard error; whatever fails meanwhile is one line."""
    from tinymlx.learn import mine

    with mine.mine_in_engine(days) as lines:
        for line in lines:
            click.secho(line, dim=True, err=True)
        told = len(lines)
        try:
            yield
        except (UserError, click.ClickException, click.Abort, OSError, MemoryError):
            raise
        except Exception as error:
            if os.environ.get("TINYMLX_DEBUG") == "1":
                raise
            numbers = ", ".join(day.number for day in days)
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(
                f"with your functions of {numbers} in it the engine failed ({text}); check them one by one"
            ) from error
    for line in lines[told:]:
        click.secho(line, fg="yellow", err=True)


@contextlib.contextmanager
def show_prefill(stopped: Callable[[], bool] = lambda: False) -> Iterator[Callable[[int, int], None]]:
    """A bar over prompt tokens on a terminal once they take a second. Raises Stopped, cache kept, once `stopped()`."""
    from tinymlx.engine import Stopped

    bar, began = None, time.monotonic()

    def on_prefill(done: int, total: int) -> None:
        nonlocal bar
        if stopped():
            raise Stopped
        if bar is None and done < total and time.monotonic() - began > 1 and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("prompt"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("tokens"),
                TimeRemainingColumn(),
            )
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            bar.start()
            bar.add_task("prompt", total=total)
        if bar is not None:
            bar.update(bar.task_ids[0], completed=done)
            if done == total:
                bar.stop()

    try:
        yield on_prefill
    finally:
        if bar is not None:
            bar.stop()
