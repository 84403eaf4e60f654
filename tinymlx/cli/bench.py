"""tinymlx bench: memory bandwidth, matrix multiplication, and a roofline with Qwen3 on it."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from tinymlx.errors import UserError

NOISY = 1.3  # best over median: beyond this something else was running


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(0.05, 600),
    default=15,
    show_default=True,
    help="Time to measure for, shared among the measurements; setting them up comes on top.",
)
@click.option(
    "--scale",
    type=click.FloatRange(0.001, 1),
    default=1,
    hidden=True,
    help="Of the sizes; below 1 the figures mean nothing.",
)
@click.option(
    "--json", "json_file", metavar="FILE", help="Write everything as JSON too; `-` prints it, and nothing else."
)
@click.option(
    "--model", metavar="NAME", help="Say where a decode step of this model goes, on a machine that was measured before."
)
@click.option(
    "--context", type=click.IntRange(1), default=512, show_default=True, help="With --model: tokens before the step."
)
@click.option("--mine", metavar="DAYS", help="With your own functions of these days of the course, as in 2.1.")
def command(mine: str | None, **options: Any) -> None:
    """Measure this machine: bandwidth, matmul, roofline. Takes less than a minute. With --model: profile a decode step.

    \b
    Figures are medians over trials after a warm-up; the roof is made of the best ones. A read of
    N bytes counts N, a copy or scale 2 N. `doctor` and `chat` use what is measured here; it is
    kept in your cache folder.
    """
    check_writable(options["json_file"])
    if options["seconds"] != options["seconds"] or options["scale"] != options["scale"]:
        raise click.BadParameter("NaN is not a number of seconds")
    if mine is None:
        bench(**options, keep=options["scale"] == 1)
        return
    from tinymlx.cli.assistant import mine_in_engine
    from tinymlx.learn.mine import written_days

    with mine_in_engine(written_days(mine)):
        bench(**options, keep=False)


def bench(seconds: float, scale: float, json_file: str | None, model: str | None, context: int, keep: bool) -> None:
    from tinymlx.bench import bandwidth, roofline
    from tinymlx.memory import machine as machines

    machine = machines.inspect(isolated=False)
    if machine.mlx is None:
        raise UserError(f"MLX cannot be used here ({machine.mlx_error}); `tinymlx doctor` says what to install")
    if model is not None:
        _profile(machine, model, context, seconds, json_file)
        return
    todo = bandwidth.tasks(machine, scale)
    measured = with_bar(bandwidth.run(todo, seconds), len(todo))

    rates = {task.key: bandwidth.counts(task.key, rate) for task, rate in measured if task.key}
    roof = roofline.Roof(rates["read_gb_s"], rates["matmul_tflop_s"])
    float_bytes = 4 if machine.backend == "cpu" else 2
    works = roofline.qwen3("4bit", roof, float_bytes)
    kept = _keep(machines, rates) if keep else None
    report = {
        "version": 1,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine.as_dict(),
        "blas": _blas(machine.backend),
        "seconds": seconds,
        "scale": scale,
        "rates": [rate._asdict() | {"key": task.key or None} for task, rate in measured],
        "roof": roof._asdict() | {"ridge_flop_per_byte": roof.ridge},
        "qwen3_4bit": [work._asdict() for work in works],
        "kept_in": str(kept) if kept else None,
    }
    if json_file != "-":
        _show(machine, report["blas"], measured, roof, works)
        if kept:
            click.echo(f"\nKept in {kept} for `tinymlx doctor` and `tinymlx chat`.")
    write_json(report, json_file)


def check_writable(json_file: str | None) -> None:
    """Before anything is measured. Raises UserError."""
    if json_file in (None, "-"):
        return
    path = Path(json_file)
    try:
        is_new = not path.exists()
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise UserError(f"{json_file} cannot be written: {error.strerror or error}; name another file") from None


def write_json(report: dict[str, Any], json_file: str | None) -> None:
    text = json.dumps(report, indent=1)
    if json_file == "-":
        click.echo(text)
    elif json_file:
        try:
            Path(json_file).write_text(text + "\n")
        except OSError as error:
            raise UserError(f"{json_file} cannot be written: {error.strerror or error}; name another file") from None


def _profile(machine: Any, name: str, context: int, seconds: float, json_file: str | None) -> None:
    """Where a decode step of model `name` after `context` tokens goes."""
    from rich.console import Console
    from rich.table import Table

    from tinymlx.bench import profile, roofline
    from tinymlx.cli.assistant import Assistant

    if not {"read_gb_s", "matmul_tflop_s"} <= machine.measured.keys():
        raise UserError("this machine has not been measured; run `tinymlx bench` without --model first")
    flags = {"model": name, "adapter_path": None, "max_kv_size": None, "prefill_step_size": 512}
    model = Assistant(flags).load(context=context + 1).model
    roof = roofline.Roof(machine.measured["read_gb_s"], machine.measured["matmul_tflop_s"])
    step_s, parts = profile.profile(model, context, seconds)
    line = profile.fit([p.calls for p in parts], [p.nbytes for p in parts], [p.seconds for p in parts])
    floors = {p.name: profile.floor_s(p.nbytes, p.flops, roof) for p in parts}
    splits = {p.name: profile.split(p.seconds, floors[p.name], p.calls * line.call_s) for p in parts}
    gains = profile.gains(step_s, {p.name: (p.seconds, floors[p.name]) for p in parts})
    report = {
        "version": 1,
        "model": name,
        "context": context,
        "machine": machine.as_dict(),
        "roof": roof._asdict(),
        "step_s": step_s,
        "floor_s": sum(floors.values()),
        "fit": line._asdict(),
        "operations": [p._asdict() | {"split_s": splits[p.name]._asdict(), "gain": dict(gains)[p.name]} for p in parts],
    }
    if json_file != "-":
        console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
        share = f"{report['floor_s'] * 1e3:.2f} ms ({report['floor_s'] / step_s:.0%})"
        console.print(
            f"{name}, one token after {context}: {step_s * 1e3:.2f} ms, {1 / step_s:.1f} tokens/s; floor {share}\n"
        )
        table = Table("", "calls", "MB", "ms", "floor", "calls", "gap", "gain", box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for p in sorted(parts, key=lambda p: -p.seconds):
            times = (f"{s * 1e3:.2f}" for s in (p.seconds, *splits[p.name]))
            table.add_row(p.name, str(p.calls), f"{p.nbytes / 1e6:.2f}", *times, f"{dict(gains)[p.name]:.2f}x")
        waiting = step_s - sum(p.seconds for p in parts)
        table.add_row("waiting, Python", "", "", f"{waiting * 1e3:.2f}")
        console.print(table)
        console.print(
            f"\nA call costs {line.call_s * 1e6:.1f} us and bytes come at {line.gb_s:.3g} GB/s, by least squares over these rows."
        )
        console.print("gain: of the step, were this operation alone at its floor.")
    write_json(report, json_file)


def with_bar(rates: Any, total: int) -> list:
    """All of `rates`, with a bar on a terminal."""
    if not sys.stderr.isatty():
        return list(rates)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        return list(bar.track(rates, total=total))


def _keep(machines: Any, rates: dict[str, float]) -> Path | None:
    try:
        return machines.save_measurements(rates)
    except OSError as error:
        click.echo(f"warning: the figures could not be kept ({error}); doctor and chat will do without", err=True)
        return None


def _blas(backend: str | None) -> str | None:
    """On a CPU no matmul figure is worth anything without the name of its BLAS."""
    from tinymlx import blas

    return blas.describe().name if backend == "cpu" else None


def title(machine: Any) -> str:
    """ "Apple M4 Max · MLX 0.32.4 on metal" """
    return f"{machine.gpu if machine.backend == 'cuda' else machine.chip} · MLX {machine.mlx} on {machine.backend}"


def _show(machine: Any, blas: str | None, measured: list, roof: Any, works: list) -> None:
    from rich.console import Console
    from rich.table import Table

    from tinymlx.bench import roofline
    from tinymlx.memory.sizes import GROUP, bytes_per_weight

    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(title(machine) + (f" · {blas}" if blas else ""))
    table = Table("", "by", "median", "best", "", "trials", box=None, pad_edge=False)
    for column in (2, 3, 5):
        table.columns[column].justify = "right"
    for _, rate in measured:
        table.add_row(rate.name, rate.by, f"{rate.median:.3g}", f"{rate.best:.3g}", rate.unit, str(rate.trials))
    console.print(table)
    rates = f"read {roof.gb_s:.3g} GB/s, matmul {roof.tflop_s:.3g} TFLOP/s"
    console.print(f"\nroof: {rates}; they meet at {roof.ridge:.3g} FLOP a byte\n")

    float_bytes = 4 if machine.backend == "cpu" else 2
    points = [roofline.Point("d" if w.phase == "decode" else "p", w.intensity, roof.at(w.intensity)) for w in works]
    for task, rate in measured:
        if task.key.startswith("matvec_"):
            packing = "bf16" if "dense" in task.key else task.key.split("_")[1]
            intensity = 2 / bytes_per_weight(packing, float_bytes)
            mark = {"4bit": "4", "8bit": "8", "bf16": "f"}[packing]
            points.append(roofline.Point(mark, intensity, rate.median * intensity / 1e3))
    console.print(roofline.draw(roof, points, width=min(console.width, 90)), markup=False)
    console.print(
        f"d, p: the roof over decode (at {roofline.CONTEXT} tokens) and prefill (of {roofline.CHUNK}).\n"
        f"4, 8, f: the matvec measured here, 4 and 8 bits (group {GROUP}) and unquantised.\n"
    )
    console.print("4 bits, at most:")
    table = Table("", "decode tok/s", "bound by", "prefill tok/s", "bound by", box=None, pad_edge=False)
    for column in (1, 3):
        table.columns[column].justify = "right"
    for decode, prefill in zip(works[::2], works[1::2]):
        speeds = (_speed(decode.tokens_per_s), decode.bound_by, _speed(prefill.tokens_per_s), prefill.bound_by)
        table.add_row(decode.model, *speeds)
    console.print(table)
    if any(rate.best > NOISY * rate.median for _, rate in measured):
        console.print("\nSome best trials were much faster than the median: other programs are running.")
        console.print("Close them and measure again.")


def _speed(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.1f}" if tokens_per_s < 100 else f"{tokens_per_s:,.0f}"
