"""tinymlx generate: one prompt, one answer, streamed."""

import json
import sys
from typing import Any

import click

from tinymlx.cli.options import sampling_params, shared_options
from tinymlx.errors import UserError


@click.command()
@click.option("-p", "--prompt", required=True, help="The prompt; `-` reads it from standard input.")
@click.option(
    "--raw",
    "--ignore-chat-template",
    "raw",
    is_flag=True,
    help="Continue the prompt as it stands, without the chat template.",
)
@click.option(
    "--logprobs",
    type=click.IntRange(0),
    metavar="N",
    help="With --json: log-probabilities, of the N most likely tokens too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line at the end instead of streaming text.")
@shared_options("generate")
def command(prompt: str, raw: bool, logprobs: int | None, as_json: bool, **flags: Any) -> None:
    """Answer one prompt. Text goes to standard output, figures to standard error."""
    if prompt == "-":
        prompt = read_stdin()
    if not prompt:
        raise UserError("the prompt is empty; give text after --prompt, or pipe it in with --prompt -")
    if logprobs is not None and not as_json:
        raise UserError("--logprobs needs --json, which is where they are printed")
    if raw and flags["system_prompt"] is not None:
        raise UserError("--system-prompt needs the chat template; leave out --raw, or put the text into the prompt")

    from tinymlx.cli.assistant import Assistant, show_prefill
    from tinymlx.cli.report import kernels_served, summary, timings
    from tinymlx.kernels import services

    assistant = Assistant(flags)
    params = sampling_params(flags | {"logprobs": logprobs}, assistant.generation_config)
    if raw:
        tokens = assistant.tokenizer.encode(prompt, add_special_tokens=True)
    else:
        system = [{"role": "system", "content": flags["system_prompt"]}] if flags["system_prompt"] is not None else []
        question = {"role": "user", "content": prompt}
        tokens = assistant.tokenizer.encode(assistant.render([*system, question], flags["enable_thinking"]))
    assistant.check(params, tokens)

    session = assistant.load(context=len(tokens) + params.max_tokens)
    chunks = []
    with show_prefill() as on_prefill:
        for chunk in session.stream(tokens, params, on_prefill=on_prefill):
            chunks.append(chunk)
            if not as_json:
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
    last = chunks[-1]
    if not as_json:
        sys.stdout.write("\n")
        if last.finish_reason == "length":
            click.echo(
                f"cut after {last.stats.generated_tokens} tokens; --max-tokens and --max-kv-size allow more", err=True
            )
        click.echo("\n".join([summary(last.stats), *(kernels_served() if flags["verbose"] else [])]), err=True)
        return
    record: dict[str, Any] = {
        "text": "".join(c.text for c in chunks),
        "tokens": [c.token for c in chunks],
        "finish_reason": last.finish_reason,
        "timings": timings(last.stats),
    }
    if flags["verbose"]:
        record["kernels"] = [service._asdict() for service in services()]
    if logprobs is not None:
        record["logprobs"] = [{"token": c.token, "logprob": c.logprob, "top_logprobs": c.top_logprobs} for c in chunks]
    click.echo(
        json.dumps(record, ensure_ascii=not (sys.stdout.encoding or "").lower().startswith("utf"), allow_nan=False)
    )


def read_stdin() -> str:
    """Standard input as text; bytes that are not UTF-8 become replacement characters."""
    return sys.stdin.buffer.read().decode("utf-8", "replace")
