"""tinymlx kernels: our Metal kernels, whether they are right and how fast on this machine; and anybody's own kernel, checked."""

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tinymlx.cli.bench import check_writable, title, with_bar, write_json
from tinymlx.errors import UserError

ON_CPU = "On a CPU our kernels run in a stand-in for a GPU, slow by design: one shape each, few rounds. Figures of a GPU need a GPU."
FILE_OPTIONS = {  # as in check_file
    "kernel": "Which kernel function, if there are several; of a template softmax<float,4>.",
    "call": "For function templates alone: a line that calls one. Repeatable.",
    "grid": "X,Y,Z threads (not threadgroups).",
    "threadgroup": "X,Y,Z threads.",
    "input": "NAME=DTYPE:SHAPE, drawn: x=float32:4x1000. Or a number, or a file.npy. Repeatable.",
    "output": "NAME=DTYPE:SHAPE. Repeatable.",
    "twin": "FILE.py:FUNCTION that returns what the outputs must be.",
    "tolerance": "Of errors, relative to the largest magnitude.",
}


@click.group()
def command() -> None:
    """Our Metal kernels, on whatever MLX computes on here; and your own."""


@command.command("list")
def list_kernels() -> None:
    """Name each kernel, with what it does."""
    from tinymlx.kernels.cases import KERNELS
    from tinymlx.kernels.metal import source

    for name in KERNELS:
        first = source(name).partition("\n")[0].removeprefix(f"// {name}: ").rpartition("   ")[0].strip()
        click.echo(f"{name:<12} {first}")


# check ----------------------------------------------------------------------------------------------------------------


def file_options(function: Any) -> Any:
    for name, text in reversed(FILE_OPTIONS.items()):
        repeated = name in ("call", "input", "output")
        function = click.option(f"--{name}", multiple=repeated, metavar="TEXT", help=f"File: {text}")(function)
    return function


@command.command()
@click.argument("name", required=False, metavar="[NAME | FILE.metal]")
@click.option("--report", metavar="FILE", help="Write everything to this file, as JSON.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the arguments drawn.")
@click.option("--bench", "timed", is_flag=True, help="Measure too, as `tinymlx kernels bench` does.")
@file_options
def check(name: str | None, report: str | None, seed: int, timed: bool, **given: Any) -> None:
    """Run every case of a kernel, or of all, against float64, and once more on the CPU, watched: races, bounds, uninitialised memory.

    With FILE.metal: watch a kernel of yours. Say how it is launched by the options below, or without
    their dashes in lines of the file that begin with `// check:`. The file runs as native code, and a
    twin as Python: check only files that you trust.

    Watching needs g++ or clang. Exits with 1 if anything is wrong.
    """
    from tinymlx.kernels.cases import KERNELS
    from tinymlx.memory.machine import inspect

    settings = {key: [value] if isinstance(value, str) else list(value) for key, value in given.items() if value}
    is_file = name is not None and name not in KERNELS and (name.endswith(".metal") or Path(name).exists())
    if name is not None and name not in KERNELS and not is_file:
        raise UserError(f"there is no kernel {name}; there are {', '.join(KERNELS)}, and files that end in .metal")
    if is_file and timed:
        raise UserError("--bench measures our own kernels; leave it out for a file")
    if settings and not is_file:
        raise UserError(f"--{min(settings)} is for a file of yours; name it, as in `tinymlx kernels check my.metal`")
    check_writable(report)
    _spare(report, Path(name) if is_file else None, settings)
    machine = inspect(isolated=False)
    record = {
        "machine": machine.as_dict(),
        "compiler": _compiler(is_file),
        "tinymlx": _version(),
        "date": _date(),
        "seed": seed,
    }
    click.echo(title(machine))
    if is_file:
        good = check_own(Path(name), settings, seed, record)
    else:
        good = check_ours([name] if name else list(KERNELS), seed, record)
    if timed:
        measure(machine, name, None, record)
    if report:
        write_json(record, report)
        click.echo(report)
    raise SystemExit(0 if good else 1)


def _spare(report: str | None, file: Path | None, settings: dict[str, list[str]]) -> None:
    """Raises UserError where the report would be written over a file that the check reads."""
    from tinymlx import paths
    from tinymlx.kernels.check_file import files_of

    if report and Path(report).exists():
        used = [*paths.metal_kernels().rglob("*.metal"), *(files_of(file, settings) if file else [])]
        if any(path.exists() and path.samefile(report) for path in used):
            raise UserError(f"--report {report} is a file that the check reads; name another file")


def _compiler(is_file: bool) -> str | None:
    """Its version. Says once that there is none, or raises UserError where none of our kernels runs without; a file's check raises itself."""
    import mlx.core as mx

    from tinymlx.kernels.host import compiler

    try:
        return compiler.native().version.partition("\n")[0]
    except UserError as error:
        if not is_file and mx.default_device() == mx.cpu:
            raise
        if not is_file:
            click.echo(f"kernels are not watched: {error}", err=True)
        return None


def _version() -> str:
    from tinymlx import __version__

    return __version__


def _date() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def check_ours(names: list[str], seed: int, record: dict[str, Any]) -> bool:
    """Fills record["kernels"]. -> whether all is well."""
    import mlx.core as mx
    import numpy as np

    from tinymlx.kernels.cases import KERNELS
    from tinymlx.kernels.metal import host_checked

    watched, good = record["compiler"] is not None, True
    record["kernels"] = {}
    for kernel in names:
        rows = record["kernels"][kernel] = []
        for case in KERNELS[kernel](np.random.default_rng(seed)):
            row: dict[str, Any] = {"case": case.label}
            rows.append(row)
            _try(row, "error_over_bound", case)
            if watched and (row["error_over_bound"] is not None or mx.default_device() != mx.cpu):
                with host_checked() as reports:
                    _try(row, "watched_error_over_bound", case)
                row["findings"] = [str(finding) for r in reports for finding in r.findings]
                row["bytes"] = {b: asdict(t) for r in reports for b, t in r.traffic.items()}
        good &= show(kernel, rows)
    return good


def _try(row: dict[str, Any], key: str, case: Any) -> None:
    from tinymlx.kernels.cases import excess

    try:
        row[key] = round(excess(case, case.run()), 3)
    except (RuntimeError, ValueError, UserError) as error:  # it does not compile here, or does not start
        row |= {key: None, "failed": str(error)}


def show(kernel: str, rows: list[dict[str, Any]]) -> bool:
    """One line for a kernel, and one for each case that is wrong. -> whether all is well."""
    wrong = [row for row in rows if not right(row)]
    errors = [row["error_over_bound"] for row in rows if row["error_over_bound"] is not None]
    watched = [row for row in rows if row.get("bytes")]
    worst = f"error at most {max(errors):.2f} of its bound" if errors else "none ran"
    findings = sum(len(row["findings"]) for row in rows if "findings" in row)
    click.echo(
        f"{_mark(not wrong)} {kernel:<12} {len(rows)} cases, {worst}, {len(watched)} watched, {findings} findings"
    )
    for row in wrong:
        failed = " ".join(row.get("failed", "").split())[:300]
        click.echo(f"    {row['case']}: error {row['error_over_bound']} of its bound {failed}".rstrip())
        for finding in row.get("findings", [])[:3]:
            click.echo(f"        {finding}")
    if watched and not wrong:
        row = max(watched, key=lambda row: _moved(row["bytes"])[0])
        factor, buffer = _moved(row["bytes"])
        click.echo(
            f"    moves at most {factor:.2f} times the bytes of its buffers: {row['case']}, most of all {buffer}"
        )
    return not wrong


def _mark(good: bool) -> str:
    return click.style("✓", fg="green") if good else click.style("✗", fg="red")


def _moved(traffic: dict[str, dict[str, int]]) -> tuple[float, str]:
    """(bytes that threads moved over the size of the buffers, the buffer that adds most to it); without numbers that travel as small arrays."""
    size = {name: t["size"] for name, t in traffic.items() if t["size"] > 32}
    if not size:
        return 0.0, ""
    moved = {name: traffic[name]["read"] + traffic[name]["written"] for name in size}
    return sum(moved.values()) / sum(size.values()), max(size, key=lambda name: moved[name] - size[name])


def right(row: dict[str, Any]) -> bool:
    errors = (row["error_over_bound"], row.get("watched_error_over_bound", 0))
    return all(error is not None and error <= 1 for error in errors) and not row.get("findings")


def check_own(path: Path, settings: dict[str, list[str]], seed: int, record: dict[str, Any]) -> bool:
    """Fills record["findings"], "bytes" and "errors". -> whether all is well."""
    from tinymlx.kernels.check_file import check_file

    checked = check_file(path, settings, seed)
    report = checked.report
    count = len(report.findings)
    click.echo(f"{_mark(not count)} {path.name}: {count or 'no'} finding{'' if count == 1 else 's'}")
    for finding in report.findings:
        click.echo(f"    {finding}")
    for name, moved in report.traffic.items():
        if name in checked.arrays:
            parts = [
                f"{what} {n:,} ({n / moved.size:.2f} times)"
                for what, n in (("read", moved.read), ("written", moved.written))
                if n
            ]
            click.echo(f"    {name:<12} {moved.size:>12,} bytes  {', '.join(parts) or 'not touched'}")
    for name, size in report.scratch.items():
        click.echo(f"    {name:<12} {size:>12,} bytes  of threadgroup memory")
    for name, e in checked.errors.items():
        click.echo(
            f"    {name:<12} error at most {e.error:.3g}, {e.allowed:.3g} allowed, largest value {e.magnitude:.3g}"
        )
    if checked.not_strict:
        click.echo(f"    not held against what only Metal forbids: {checked.not_strict}")
    record |= {
        "file": str(path),
        "findings": [str(finding) for finding in report.findings],
        "bytes": {name: asdict(t) for name, t in report.traffic.items()},
        "errors": {name: e._asdict() for name, e in checked.errors.items()},
        "not_strict": checked.not_strict,
    }
    return not count


# bench ----------------------------------------------------------------------------------------------------------------


@command.command()
@click.argument("name", required=False)
@click.option(
    "--json", "json_file", metavar="FILE", help="Write everything as JSON too; `-` prints it, and nothing else."
)
@click.option("--rounds", type=click.IntRange(1), help="Of which medians are taken. Default: 7, on a CPU 3.")
def bench(name: str | None, json_file: str | None, rounds: int | None) -> None:
    """Time our kernels beside MLX's own operations and their twins, at the shapes of Qwen3.

    On a GPU calls are chained, compiled, over arguments that no cache holds; all take turns. GB/s are of
    the bytes that a call needs at least.
    """
    from tinymlx.kernels.bench import BENCHES
    from tinymlx.memory.machine import inspect

    if name is not None and name not in BENCHES:
        raise UserError(f"there is no kernel {name} to measure; there are {', '.join(BENCHES)}")
    check_writable(json_file)
    machine = inspect(isolated=False)
    record: dict[str, Any] = {"version": 1, "date": _date(), "tinymlx": _version(), "machine": machine.as_dict()}
    if json_file != "-":
        click.echo(title(machine))
    measure(machine, name, rounds, record, quiet=json_file == "-")
    write_json(record, json_file)


def measure(machine: Any, name: str | None, rounds: int | None, record: dict[str, Any], quiet: bool = False) -> None:
    """Fills record["bench"]: what was measured, and shows it."""
    from rich.console import Console
    from rich.table import Table

    from tinymlx.bench import bandwidth
    from tinymlx.kernels import bench

    on_cpu = machine.backend == "cpu"
    rounds, todo = rounds or (3 if on_cpu else 7), bench.plan(name)
    nbytes = bandwidth.buffer_bytes(machine)
    copy = bandwidth.numpy_copy(nbytes, machine.cores, 0.3) if on_cpu else bandwidth.mlx_copy(nbytes, 0.3)
    results = with_bar(bench.run(todo, rounds), len(todo))
    rows = [r._asdict() | {"factor": r.factor} for r in results]
    record["bench"] = {"rounds": rounds, "copy_gb_s": copy.best, "results": rows}
    if quiet:
        return
    table = Table(
        "",
        "",
        "rows",
        "ours us",
        "GB/s",
        "of copy",
        "TFLOP/s",
        "MLX us",
        "twin us",
        "MLX / ours",
        box=None,
        pad_edge=False,
    )
    for column in table.columns[2:]:
        column.justify = "right"
    for r in results:
        ours, mlx, twin = (
            f"{r.seconds[by] * 1e6:,.1f}" if by in r.seconds else "failed" for by in ("ours", "mlx", "twin")
        )
        rates = ["", "", ""]
        if "ours" in r.seconds:
            flops = f"{r.flops / r.seconds['ours'] / 1e12:.3g}" if r.flops else ""
            rates = [f"{r.gb_s:.3g}", f"{r.gb_s / copy.best:.1%}", flops]
        table.add_row(r.kernel, r.model, str(r.rows), ours, *rates, mlx, twin, f"{r.factor:.2f}" if r.factor else "")
    Console(width=None if sys.stdout.isatty() else 110, highlight=False).print(table)
    click.echo(f"\ncopy: {copy.best:.3g} GB/s by {copy.by}; medians of {rounds} rounds")
    for r in results:
        for by, why in r.failed.items():
            click.echo(f"{r.kernel}, {r.model}, {r.rows} rows, {by}: {' '.join(why.split())[:300]}")
    if on_cpu:
        click.echo(ON_CPU)
