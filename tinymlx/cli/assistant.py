"""Opening a model for `generate` and `chat`: find it, prove that it fits, load it with a progress bar."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Assistant:
    """A loaded model with what is needed to talk to it."""

    session: Any
    tokenizer: Any
    generation_config: Mapping[str, Any]

    def render(self, messages: list[dict[str, Any]], enable_thinking: bool | None) -> list[int]:
        """Token ids of a conversation that ends with a question, up to where the answer begins."""
        options = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        return self.tokenizer.encode(self.tokenizer.apply_chat_template(messages, **options))


def open_assistant(flags: Mapping[str, Any], *, prompt_bytes: int | None = None) -> Assistant:
    """`flags` are those of `options.shared_options`. prompt_bytes: length of the only prompt there will be; default a long chat."""
    from tinymlx.hub import resolve
    from tinymlx.hub.checkpoint import open_checkpoint
    from tinymlx.hub.progress import byte_bar
    from tinymlx.hub.tokenizer import load_tokenizer

    source = resolve(flags["model"])
    checkpoint = open_checkpoint(source)
    tokenizer = load_tokenizer(source)
    max_context = fitting_context(checkpoint, flags)

    from tinymlx.engine import Session
    from tinymlx.models.config import token_ids
    from tinymlx.models.load import load_model

    with byte_bar("loading", show=sys.stderr.isatty()) as progress:
        model = load_model(checkpoint, adapter_path=flags["adapter_path"], progress=progress)
    session = Session(
        model,
        tokenizer,
        eos_token_ids=token_ids(checkpoint.generation_config.get("eos_token_id")),
        max_context=max_context,
        prefill_step_size=flags["prefill_step_size"],
    )
    return Assistant(session, tokenizer, checkpoint.generation_config)


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
