"""Opening a model for `generate` and `chat`: find it, prove that it fits, load it with a progress bar."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinymlx.engine import Session


class Assistant:
    """A model to talk to. Made, it has read headers, tokenizer and template; `load` proves that the weights fit and reads them.

    flags: those of `options.shared_options`.
    """

    def __init__(self, flags: Mapping[str, Any]):
        from tinymlx.hub import resolve
        from tinymlx.hub.checkpoint import open_checkpoint
        from tinymlx.hub.tokenizer import load_tokenizer
        from tinymlx.models.load import read_config

        self.flags = flags
        source = resolve(flags["model"])
        self.checkpoint = open_checkpoint(source)
        self.config = read_config(self.checkpoint)
        self.tokenizer = load_tokenizer(source)
        self.generation_config = self.checkpoint.generation_config

    def render(self, messages: list[dict[str, Any]], enable_thinking: bool | None) -> list[int]:
        """Token ids of a conversation that ends with a question, up to where the answer begins."""
        options = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        return self.tokenizer.encode(self.tokenizer.apply_chat_template(messages, **options))

    def load(self, context: int | None = None) -> Session:
        """Read the weights. context: tokens that must fit; default as many as the model and the memory allow, or --max-kv-size.

        Raises UserError with the numbers, before anything is read, when weights and cache do not fit.
        """
        from tinymlx.engine import Session
        from tinymlx.hub.progress import byte_bar
        from tinymlx.memory import plan
        from tinymlx.memory.machine import inspect
        from tinymlx.models.config import token_ids
        from tinymlx.models.load import load_model, memory_request

        flags, most = self.flags, self.config.max_position_embeddings
        wanted = min(context or flags["max_kv_size"] or most, flags["max_kv_size"] or most)
        machine = inspect(isolated=False)
        request = memory_request(self.checkpoint, self.config) | {"backend": machine.backend, "prefill_step_size": flags["prefill_step_size"]}
        chosen = plan.fit(plan.limit_bytes(machine), most=most, wanted=wanted if context or flags["max_kv_size"] else None, **request)
        plan.apply_limits(chosen, machine)
        with byte_bar("loading") as progress:
            model = load_model(self.checkpoint, adapter_path=flags["adapter_path"], progress=progress)
        return Session(
            model,
            self.tokenizer,
            eos_token_ids=token_ids(self.generation_config.get("eos_token_id")),
            max_context=chosen.context,
            prefill_step_size=flags["prefill_step_size"],
        )


@contextlib.contextmanager
def show_prefill(stopped: Callable[[], bool] = lambda: False) -> Iterator[Callable[[int, int], None]]:
    """A bar over prompt tokens on a terminal, for prompts of more than one chunk. Raises Stopped, cache kept, once `stopped()`."""
    from tinymlx.engine import Stopped

    bar = None

    def on_prefill(done: int, total: int) -> None:
        nonlocal bar
        if stopped():
            raise Stopped
        if bar is None and done < total and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = TextColumn("prompt"), BarColumn(), MofNCompleteColumn(), TextColumn("tokens"), TimeRemainingColumn()
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
