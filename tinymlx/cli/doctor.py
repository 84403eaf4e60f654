"""tinymlx doctor: what this machine is, what to mend on it, and which Qwen3 to run on it."""

import json
import os
import sys
from typing import Any, NamedTuple

import click

SENSIBLE = 2.0  # tokens/s: an 8-bit or unquantised model that is likely slower is not worth a line
LEAST_MACOS = 14  # MLX's wheels for Metal need it


class Advice(NamedTuple):
    """Something to mend. `broken`: nothing can run until it is."""

    what: str
    act: str
    broken: bool = False


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(as_json: bool) -> int:
    """Look at this machine: hardware, memory, MLX, what is missing, and which Qwen3 runs how fast.

    Uses no network. Exit status 1 means that no model can run here until something is mended.
    """
    from tinymlx import blas
    from tinymlx.memory import machine as machines

    machine = machines.inspect()
    blas_here, compiler = blas.describe(), blas.compiler()
    models = cached_models()
    notes = advice(machine, blas_here)
    ranked = ranking(machine)
    if as_json:
        click.echo(json.dumps(_report(machine, blas_here, compiler, models, notes, ranked), indent=1))
    else:
        _show(machine, blas_here, compiler, models, notes, ranked)
    return int(any(note.broken for note in notes))


def cached_models() -> list[dict[str, Any]] | None:
    """Models that need no download: [{"name", "path", "bytes"}]; empty where nothing was ever downloaded, None if that
    cannot be told.
    """
    try:
        from tinymlx.hub import cached_models as in_cache

        return [{"name": model.name, "path": str(model.path), "bytes": model.nbytes} for model in in_cache()]
    except Exception:  # a damaged cache, or a missing package, is no reason to say nothing about the machine
        return None


def expected_backend(machine: Any) -> str:
    """What MLX computes on here, or would if it worked."""
    return machine.backend or ("metal" if machine.system == "Darwin" else "cuda" if machine.gpu else "cpu")


# What is wrong --------------------------------------------------------------------------------------------------------


def advice(machine: Any, blas: Any, python: tuple[int, ...] = sys.version_info[:2]) -> list[Advice]:
    """What to mend, the gravest first. `machine`: memory.machine.Machine; `blas`: blas.Blas."""
    found = []
    if machine.mlx is None:
        found.append(Advice(f"MLX cannot be used: {machine.mlx_error}", _install(machine), broken=True))
    if machine.rosetta:
        found.append(
            Advice(
                "this Python is an Intel one, translated by Rosetta; MLX has none for it",
                "install an arm64 Python (`uv python install 3.12`, or python.org's universal one) and tinymlx into it",
            )
        )
    if machine.system == "Darwin" and not machine.rosetta and machine.architecture == "x86_64":
        found.append(Advice("MLX does not run on Intel Macs", "use a Mac with an Apple chip, or Linux"))
    if machine.system == "Darwin" and _macos(machine.release) < LEAST_MACOS:
        found.append(Advice(f"{machine.release} is too old for MLX", f"update to macOS {LEAST_MACOS} or later"))
    if python < (3, 11):
        found.append(Advice(f"Python {machine.python} is too old", "use Python 3.11 or later"))
    if len(machine.wheels) > 1:
        names = " and ".join(machine.wheels)
        found.append(
            Advice(
                f"{names} are both installed and overwrite each other's files",
                f"python -m pip uninstall {' '.join(machine.wheels)} mlx, then {_install(machine)}",
            )
        )
    if machine.gpu and machine.backend == "cpu":
        if any("cuda" in wheel for wheel in machine.wheels):
            found.append(
                Advice(
                    f"MLX does not use the {machine.gpu}",
                    "check its driver with nvidia-smi; CUDA 12 needs 525 or later",
                )
            )
        else:
            found.append(Advice(f"MLX's CPU wheel leaves the {machine.gpu} idle", _install(machine)))
    if machine.backend == "cpu" and not blas.fast:
        found.append(Advice(f"matrix products are 20 to 40 times slower than need be: {blas.why_not}", blas.next_act))
    if not machine.measured:
        found.append(
            Advice("this machine has not been measured", "run `tinymlx bench` (half a minute) for better predictions")
        )
    return found


def _install(machine: Any) -> str:
    if machine.system == "Darwin":
        return "in the checkout of tinymlx: python -m pip install ."
    extra = "cuda12" if machine.gpu else "cpu"
    return f"in the checkout of tinymlx: python -m pip install '.[{extra}]'" + (" (or cuda13)" if machine.gpu else "")


def _macos(release: str) -> int:
    major = release.removeprefix("macOS ").split(".")[0]
    return int(major) if major.isdigit() else LEAST_MACOS


# What runs ------------------------------------------------------------------------------------------------------------


def ranking(machine: Any) -> list[dict[str, Any]]:
    """Every official Qwen3 in every packing, the fastest first and those that do not fit last.

    Keys: model, packing, repository, weight_bytes, bytes_per_token, tokens_per_s_at_most and likely_tokens_per_s (None
    where no bandwidth is known), max_context (0: does not fit), command (None then).
    """
    from tinymlx.memory import plan, sizes

    backend = expected_backend(machine)
    float_bytes = 4 if backend == "cpu" else 2
    limit, bandwidth = plan.limit_bytes(machine), machine.bandwidth_gb_s
    rows = []
    for size in sizes.SIZES:
        for packing, bits in sizes.PACKINGS.items():
            request = sizes.plan_request(size, packing, backend)
            read = sizes.bytes_per_token(size, packing, float_bytes)
            matvec = machine.measured.get(f"matvec_{packing if bits else 'dense'}_gb_s")
            context = plan.max_context(limit, most=sizes.CONTEXT, **request)
            fits = context >= plan.TOO_SHORT
            likely = bandwidth and sizes.likely_tokens_per_s(size, packing, read, bandwidth, backend, matvec)
            rows.append(
                {
                    "model": size.name,
                    "packing": packing,
                    "repository": sizes.repository(size, packing),
                    "weight_bytes": request["weight_bytes"],
                    "bytes_per_token": read,
                    "tokens_per_s_at_most": bandwidth and sizes.most_tokens_per_s(read, bandwidth),
                    "likely_tokens_per_s": likely,
                    "max_context": context if fits else 0,
                    "command": f"tinymlx chat --model {sizes.repository(size, packing)}" if fits else None,
                }
            )

    def place(row: dict[str, Any]) -> tuple:
        return not row["max_context"], -(row["likely_tokens_per_s"] or 0), row["bytes_per_token"]

    return sorted(rows, key=place)


def worth_showing(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every size in 4 bits, and the wider packings that fit and are not a torment."""
    return [
        row
        for row in rows
        if row["packing"] == "4bit" or (row["max_context"] and (row["likely_tokens_per_s"] or SENSIBLE) >= SENSIBLE)
    ]


# Saying so ------------------------------------------------------------------------------------------------------------


def _report(
    machine: Any, blas: Any, compiler: str | None, models: list | None, notes: list[Advice], rows: list[dict]
) -> dict:
    from tinymlx import __version__
    from tinymlx.memory import plan

    return {
        "version": 1,
        "tinymlx": __version__,
        "machine": machine.as_dict(),
        "limit_bytes": plan.limit_bytes(machine),
        "blas": blas.__dict__,
        "compiler": compiler,
        "models": models,
        "advice": [note._asdict() for note in notes],
        "qwen3": rows,
    }


def facts(machine: Any, blas: Any, compiler: str | None) -> list[tuple[str, str]]:
    """Lines of the first table."""
    from tinymlx import __version__
    from tinymlx.memory.plan import gigabytes, limit_bytes

    gpu_cores = f", {machine.gpu_cores} GPU cores" if machine.gpu_cores else ""
    translated = ", translated by Rosetta" if machine.rosetta else ""
    lines = [
        ("system", f"{machine.release}, {machine.architecture}"),
        ("chip", f"{machine.chip}, {machine.cores} core{'s' * (machine.cores != 1)} to use{gpu_cores}"),
    ]
    if machine.gpu:
        lines.append(("GPU", machine.gpu))
    of = "of this container" if machine.in_container else "in all"
    lines.append(("memory", f"{gigabytes(machine.total_memory)} {of}, {gigabytes(machine.available_memory)} available"))
    lines += [("limit", f"{gigabytes(limit_bytes(machine))} for a model: {_limit_reason(machine)}")]
    lines.append(("bandwidth", _bandwidth(machine)))
    lines.append(("Python", f"{machine.python}{translated}"))
    if machine.mlx:
        lines.append(("MLX", f"{machine.mlx} on {machine.backend} ({', '.join(machine.wheels) or 'no wheel known'})"))
    else:
        lines.append(("MLX", f"none: {machine.mlx_error}"))
    if expected_backend(machine) == "cpu":
        threads = f", {blas.threads} threads" if blas.threads else ""
        lines.append(("BLAS", f"{blas.name}{threads}" + ("" if blas.fast else ": slow")))
    lines.append(("kernels", _kernels()))
    lines.append(("C compiler", compiler or "none"))
    lines.append(("tinymlx", __version__))
    return lines


def _kernels() -> str:
    from tinymlx.memory import verdicts

    try:
        place = f"in {verdicts.file()}"
    except RuntimeError:
        place = "nowhere: there is no home folder"
    return f"{os.environ.get('TINYMLX_KERNELS', 'auto')}; {verdicts.count()} trials of ours kept {place}"


def _limit_reason(machine: Any) -> str:
    backend = expected_backend(machine)
    if backend == "metal":
        known = "max_recommended_working_set_size" in machine.device
        return "the GPU's recommended working set" if known else "two thirds of memory, as MLX could not be asked"
    return "free on the card" if backend == "cuda" and machine.device else "available memory, less a twentieth"


def _bandwidth(machine: Any) -> str:
    measured = machine.measured.get("read_gb_s")
    published = machine.published_gb_s
    told = f"{published:.0f} GB/s says its maker" if published else ""
    if measured:
        return f"{measured:.1f} GB/s read by `tinymlx bench`" + (f", {told}" if told else "")
    return told or "unknown; `tinymlx bench` measures it"


def _show(
    machine: Any, blas: Any, compiler: str | None, models: list | None, notes: list[Advice], rows: list[dict]
) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from tinymlx.memory.plan import gigabytes

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    grid = Table.grid(padding=(0, 2))
    for name, value in facts(machine, blas, compiler):
        grid.add_row(f"[bold]{name}[/bold]", escape(value))
    console.print(grid)

    if notes:
        console.print("\n[bold]To do[/bold]")
    for note in notes:
        console.print(f"  {'[red]broken[/red]' if note.broken else '-'} {escape(note.what)}\n      {escape(note.act)}")

    console.print("\n[bold]Models on this machine[/bold]")
    for model in models or []:
        console.print(f"  tinymlx chat --model {escape(model['name'])}   {gigabytes(model['bytes'])}")
    if not models:
        console.print("  none yet" if models is not None else "  the cache folder cannot be read")

    console.print("\n[bold]Qwen3 here, the fastest first[/bold]")
    table = Table("weights", "tok/s at most", "likely", "context", "command", box=None, pad_edge=False)
    for column in range(4):
        table.columns[column].justify = "right"
    table.columns[4].overflow = "fold"
    for row in worth_showing(rows):
        keys = ("tokens_per_s_at_most", "likely_tokens_per_s")
        speeds = [_speed(row[key]) if row["max_context"] else "" for key in keys]
        context = str(row["max_context"]) if row["max_context"] else "too big"
        table.add_row(gigabytes(row["weight_bytes"]), *speeds, context, row["command"] or row["repository"])
    console.print(table)
    for line in explanation(machine):
        console.print(line, style="dim")


def _speed(tokens_per_s: float | None) -> str:
    if tokens_per_s is None:
        return "?"
    return f"{tokens_per_s:.0f}" if tokens_per_s >= 10 else f"{tokens_per_s:.1f}" if tokens_per_s >= 0.05 else "< 0.1"


def explanation(machine: Any) -> list[str]:
    """How the ranking was made, for this back end."""
    lines = [
        "At most: bandwidth over the bytes of weights that a token reads, for a short context.",
        "Context: what fits, up to 40960 tokens.",
    ]
    backend = expected_backend(machine)
    basis = {
        "metal": "other people's figures for mlx-lm on M3 and M4 chips; within 35 % of those",
        "cuda": "runs of mlx-lm on one H200; within a third of those",
        "cpu": "runs of MLX on two x86 cores",
    }[backend]
    if any(key.startswith("matvec_") for key in machine.measured):
        basis = "the matvec that `tinymlx bench` measured here"
    lines.append(f"Likely: a guess from {basis}.")
    if backend == "cpu":
        lines.append(
            "On a CPU MLX unpacks 4- and 8-bit weights in one thread without vector instructions: hence the gap."
        )
    return lines
