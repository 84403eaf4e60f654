"""tinymlx learn: do the course, be graded, and run what you wrote inside the engine."""

import difflib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from tinymlx.cli.options import DEFAULT_MODEL
from tinymlx.errors import UserError

PROGRESS = Path("my") / "progress.json"
MARKS = {
    "passed": ("✓", "green"),
    "missing": ("·", "yellow"),
    "wrong": ("✗", "red"),
    "error": ("✗", "red"),
    "stopped": ("✗", "red"),
}


@click.group()
def command() -> None:
    """The course: write parts of this engine yourself, have them graded, and run them in it."""


@command.command("list")
def list_days() -> None:
    """Show the days and how far you are."""
    from tinymlx.learn.days import all_days

    passed = read_progress()
    for day in all_days():
        done = set(passed.get(day.number, []))
        states = " ".join(click.style("●", fg="green") if task.number in done else "○" for task in day.tasks)
        started = "" if day.mine.is_file() else click.style("  not started", dim=True)
        click.echo(f"{day.number}  {title(day):<48} {states}{started}")
        for task in day.tasks:
            click.secho(f"       {task.number}. {', '.join(task.functions)}: {task.title}", dim=True)


def title(day: Any) -> str:
    """The chapter's heading, without its number."""
    first = (day.folder / "README.md").read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ").removeprefix(day.number).strip(" ·:.")


@command.command()
@click.argument("day")
def start(day: str) -> None:
    """Copy a day's exercise to my/. What is there already stays as it is."""
    from tinymlx.learn.days import find_day

    found = find_day(day)
    if found.mine.exists():
        click.echo(f"{found.mine} is there already and stays as it is")
    else:
        try:
            found.mine.parent.mkdir(parents=True, exist_ok=True)
            ignore = PROGRESS.parent / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
            with found.mine.open("x", encoding="utf-8") as copy:
                copy.write(found.exercise.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(
                f"{found.mine} cannot be written: {error.strerror or error}; go to a folder of yours"
            ) from None
        click.echo(f"write  {found.mine}")
    click.echo(f"read   {shown(found.folder / 'README.md')}")
    click.echo(f"check  tinymlx learn check {found.number} --watch")


def shown(path: Path) -> str:
    """A path as short as it can be."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def started(day: str) -> Any:
    from tinymlx.learn.days import find_day

    found = find_day(day)
    if not found.mine.is_file():
        raise UserError(
            f"{found.mine} is not there; tinymlx learn start {found.number}, or go to the folder where you did"
        )
    return found


@command.command()
@click.argument("day")
@click.option("--task", type=click.IntRange(1), help="Only this task.")
@click.option("--watch", is_flag=True, help="Again whenever the file is saved, until Ctrl-C.")
@click.option("--seed", type=click.IntRange(0), help="Repeat the draws of an earlier check.")
@click.option("--time-limit", type=click.IntRange(5, 3600), default=60, show_default=True, metavar="SECONDS")
def check(day: str, task: int | None, watch: bool, seed: int | None, time_limit: float) -> None:
    """Grade my/. Exits with 0 if every task asked for passes."""
    from tinymlx.learn.check import check as grade

    found = started(day)
    while True:
        stamp = modified(found.mine)
        try:
            verdicts = grade(found, found.mine, task=task, seed=seed, time_limit_s=time_limit)
            show(found, verdicts)
            good = all(verdict.state == "passed" for verdict in verdicts)
        except UserError as error:
            if not watch:
                raise
            click.echo(f"error: {error}", err=True)
        if not watch:
            sys.exit(0 if good else 1)
        click.secho(f"\nwatching {found.mine}; Ctrl-C ends", dim=True)
        while modified(found.mine) == stamp:
            time.sleep(0.3)


def modified(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # an editor may be writing it anew
        return None


def show(day: Any, verdicts: list) -> None:
    """Print the verdicts and note what passed."""
    click.echo(f"{day.number} {day.topic} · {day.mine}")
    for verdict in verdicts:
        mark, colour = MARKS[verdict.state]
        head = f"task {verdict.task.number} {', '.join(verdict.task.functions)}"
        counts = f"{verdict.tests - verdict.failed} of {verdict.tests} tests" if verdict.tests else ""
        click.echo(f"{click.style(mark, fg=colour)} {head:<39} {counts}")
        if verdict.state == "passed":
            continue
        first = verdict.first
        if verdict.state == "missing":
            click.echo(f"    not written yet: {first['what']}")
            continue
        if first.get("test"):
            click.secho(f"    {first['test'].rpartition('::')[2]}: {first['about']}", dim=True)
        click.echo(f"    {first['what']}")
        for key in ("expected", "got", "at", "note"):
            if first.get(key):
                click.echo(f"    {key:<9}" + first[key].replace("\n", "\n             "))
        if first.get("printed", "").strip():
            click.echo("    printed  " + first["printed"].strip().replace("\n", "\n             "))
        seed = f" · the same draws: --seed {first['seed']}" if "seed" in first else ""
        click.secho(f"    tinymlx learn hint {day.number} --task {verdict.task.number}{seed}", dim=True)
    passed = read_progress()
    states = {v.task.number: v.state == "passed" for v in verdicts}
    kept = {n for n in passed.get(day.number, []) if states.get(n, True)} | {n for n, good in states.items() if good}
    write_progress(passed | {day.number: sorted(kept)})


def read_progress() -> dict[str, list[int]]:
    """Day -> the tasks that passed when they were last checked. Damaged, it counts as none."""
    try:
        content = json.loads(PROGRESS.read_text())
        return {str(day): [int(task) for task in tasks] for day, tasks in content.items()}
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def write_progress(passed: dict[str, list[int]]) -> None:
    try:
        partial = PROGRESS.with_suffix(".partial")
        partial.write_text(json.dumps(passed) + "\n")
        partial.replace(PROGRESS)
    except OSError as error:
        click.echo(f"{PROGRESS} cannot be written ({error.strerror}); `learn list` will not show this", err=True)


@command.command()
@click.argument("day")
@click.option("--task", type=click.IntRange(1), default=1, show_default=True)
@click.option("--level", type=click.IntRange(1), default=1, show_default=True, help="Higher levels say more.")
def hint(day: str, task: int, level: int) -> None:
    """Show a hint for a task."""
    from rich.console import Console
    from rich.markdown import Markdown

    from tinymlx.learn.chapters import hints
    from tinymlx.learn.days import find_day

    found = find_day(day)
    found.task(task)
    known = hints(found).get(task, [])
    if level > len(known):
        raise UserError(
            f"task {task} of day {day} has {len(known)} hints; tinymlx learn diff {day} --task {task} shows the answer"
        )
    Console().print(Markdown(known[level - 1]))
    if level < len(known):
        click.secho(f"more: tinymlx learn hint {day} --task {task} --level {level + 1}", dim=True)


@command.command()
@click.argument("day")
@click.option("--task", type=click.IntRange(1), help="Only this task.")
@click.option("--yes", is_flag=True, help="Do not ask first.")
def diff(day: str, task: int | None, yes: bool) -> None:
    """Compare my/ with the product's code: this shows the answer."""
    found = started(day)
    tasks = [found.task(task)] if task else found.tasks
    if not yes:
        click.confirm(
            f"This shows the answer to {'task ' + str(task) if task else 'all tasks'} of day {day}. Go on?", abort=True
        )
    source = found.mine.read_text(encoding="utf-8", errors="replace")
    try:
        mine = found.read(source)
    except SyntaxError as error:
        raise UserError(f"{found.mine}:{error.lineno}: {error.msg}") from None
    for name in (name for t in tasks for name in t.functions):
        theirs, home = found.answer(name)
        ours = mine[name].text.splitlines() if name in mine else []
        for line in difflib.unified_diff(ours, theirs.splitlines(), str(found.mine), home, lineterm="", n=100):
            click.secho(line, fg={"+": "green", "-": "red"}.get(line[:1]))


@command.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("my") / "site", show_default=True, help="Folder to write."
)
@click.option("--open", "opens", is_flag=True, help="Show it in the browser.")
def site(out: Path, opens: bool) -> None:
    """Write the chapters as pages for a browser; nothing in them is fetched from the network."""
    from tinymlx.learn.site import build_site

    index = build_site(out)
    click.echo(index)
    if opens:
        click.launch(str(index))


@command.command()
@click.argument("days")
@click.option("-p", "--prompt", required=True, help="The question.")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, metavar="NAME")
@click.option("-m", "--max-tokens", type=click.IntRange(1), default=24, show_default=True)
def run(days: str, prompt: str, model: str, max_tokens: int) -> None:
    """Answer with your functions inside the engine, greedily, and compare with the product's answer. DAYS: 1.1 or 1.1,1.4."""
    from tinymlx.cli.assistant import Assistant, mine_in_engine
    from tinymlx.cli.report import at_most
    from tinymlx.engine import SamplingParams
    from tinymlx.learn.mine import written_days

    chosen = written_days(days)
    flags = {"model": model, "adapter_path": None, "max_kv_size": None, "prefill_step_size": 512}
    params = SamplingParams(max_tokens=max_tokens)

    def answer(echo: bool) -> tuple[list[int], str]:
        assistant = Assistant(flags)
        tokens = assistant.tokenizer.encode(assistant.render([{"role": "user", "content": prompt}], None))
        assistant.check(params, tokens)
        session, found = assistant.load(context=len(tokens) + max_tokens), []
        try:
            for chunk in session.stream(tokens, params):
                found.append(chunk.token)
                if echo:
                    click.echo(chunk.text, nl=False)
        except UserError as error:
            if not echo or str(error).startswith("your "):
                raise
            raise UserError(
                f"with your functions in it the engine failed ({error}); tinymlx learn check {days}"
            ) from None
        finally:
            if echo:
                click.echo()
        return found, f"{chunk.stats.generation_tokens_per_s:.1f} tok/s{at_most(chunk.stats)}"

    with mine_in_engine(chosen):
        mine, my_pace = answer(echo=True)
    theirs, pace = answer(echo=False)
    same = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs)))
    verdict = (
        f"all {len(theirs)} tokens as the product's" if mine == theirs else f"token {same + 1} is not the product's"
    )
    click.secho(f"{verdict} · {my_pace}, the product {pace}", fg="green" if mine == theirs else "red", err=True)
    sys.exit(0 if mine == theirs else 1)


@command.command()
@click.option(
    "--model", metavar="NAME", help="Folder, .gguf file, `smollm2`, or a name on the hub, which is downloaded."
)
@click.option("--size", metavar="0.6B", help="An official Qwen3, without its weights. Default: 0.6B.")
@click.option(
    "--tokens", type=click.IntRange(1, 10**7), default=1, show_default=True, help="New tokens of each request."
)
@click.option(
    "--cached", type=click.IntRange(0, 10**7), default=0, show_default=True, help="Tokens in the cache before them."
)
@click.option("--rows", type=click.IntRange(1, 10**5), default=1, show_default=True, help="Requests in the step.")
@click.option("--packing", type=click.Choice(["4bit", "8bit", "bf16", "f32"]), default="bf16", show_default=True)
@click.option(
    "--bandwidth",
    type=click.FloatRange(0, min_open=True),
    metavar="GB/S",
    help="For the floor. Default: what `tinymlx bench` measured.",
)
def shapes(model: str | None, size: str | None, packing: str, bandwidth: float | None, **step: int) -> None:
    """Show one step operator by operator: shapes, arithmetic, bytes, and the time that the bytes take.

    \b
    Prefill of 512 tokens:   tinymlx learn shapes --tokens 512
    Decoding the next one:   tinymlx learn shapes --tokens 1 --cached 512
    """
    from rich.console import Console
    from rich.table import Table

    from tinymlx.memory.machine import measured_bandwidth
    from tinymlx.memory.sizes import bytes_per_weight
    from tinymlx.models.operators import operators, total

    if model and size:
        raise click.UsageError("--model and --size exclude each other")
    name, config = (model, config_of(model)) if model else official(size or "0.6B")
    wide = 4 if packing == "f32" else 2
    each = wide if packing == "f32" else bytes_per_weight(packing)
    listed = operators(config, **step, weight_bytes=each, float_bytes=wide)
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    head = f"{name}, {packing}: {step['rows']} x {step['tokens']} new tokens after {step['cached']}"
    console.print(f"{head}; figures are of all layers\n")

    columns = ("operator", "input", "weight", "output", "times", "MFLOP", "weights MB", "K/V MB")
    table = Table(*columns, box=None, pad_edge=False)
    for column in table.columns[4:]:
        column.justify = "right"
    for o in listed:
        spans = (" ".join(map(str, shape or ())) for shape in (o.input, o.weight, o.output))
        figures = (f"{x * o.times / 1e6:,.3f}" if x else "" for x in (o.flops, o.weight_bytes, o.kv_bytes))
        table.add_row(o.name, *spans, str(o.times), *figures)
    console.print(table)

    whole = total(listed)
    console.print(
        f"\n{whole.flops / 1e9:,.2f} GFLOP, {whole.weight_bytes / 1e9:,.3f} GB of weights, "
        f"{whole.kv_bytes / 1e9:,.3f} GB of K/V: {whole.intensity:,.2f} FLOP a byte"
    )
    gb_s = bandwidth or measured_bandwidth()
    if gb_s is None:
        console.print("floor: give --bandwidth, or measure it with `tinymlx bench`")
        return
    seconds = whole.floor_s(gb_s)
    source = "" if bandwidth else " (measured here by `tinymlx bench`)"
    rate = step["rows"] * step["tokens"] / seconds
    console.print(f"floor at {gb_s:,.1f} GB/s{source}: {seconds * 1e3:,.2f} ms, at most {rate:,.1f} tokens/s")


def config_of(model: str) -> Any:
    """A model's configuration; none of its weights is read."""
    from tinymlx.hub import resolve
    from tinymlx.hub.checkpoint import open_checkpoint
    from tinymlx.models.load import read_config

    return read_config(open_checkpoint(resolve(model)))


def official(name: str) -> tuple[str, Any]:
    """ "0.6B" or "Qwen3-0.6B" -> the full name and the configuration. Raises UserError with the names that there are."""
    from tinymlx.memory.sizes import CONTEXT, HEAD_DIM, SIZES, VOCAB
    from tinymlx.models.config import ModelConfig

    known = {size.name.removeprefix("Qwen3-").lower(): size for size in SIZES if not size.experts}
    size = known.get(name.lower().removeprefix("qwen3-"))
    if size is None:
        raise UserError(f"there is no dense Qwen3 of size {name!r}; there are {', '.join(known)}")
    shape = {
        "model_type": "qwen3",
        "num_hidden_layers": size.layers,
        "hidden_size": size.hidden,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": HEAD_DIM,
        "intermediate_size": size.intermediate,
        "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT,
        "rope_theta": 1e6,
        "tie_word_embeddings": size.tied,
    }
    return size.name, ModelConfig.from_dict(shape)
