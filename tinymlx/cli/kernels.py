"""tinymlx kernels: our Metal kernels, and whether they are right on this machine."""

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tinymlx.errors import UserError


@click.group()
def command() -> None:
    """Our Metal kernels, on whatever MLX computes on here."""


@command.command("list")
def list_kernels() -> None:
    """Name each kernel, with what it does."""
    from tinymlx.kernels.cases import KERNELS
    from tinymlx.kernels.metal import source

    for name in KERNELS:
        first = source(name).partition("\n")[0].removeprefix(f"// {name}: ").rpartition("   ")[0].strip()
        click.echo(f"{name:<12} {first}")


@command.command()
@click.argument("name", required=False)
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), help="Write everything to this file, as JSON."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the arguments drawn.")
def check(name: str | None, report: Path | None, seed: int) -> None:
    """Run every case of a kernel, or of all, against float64, and once more on the CPU, watched: races, bounds, uninitialised memory.

    The watched run needs g++ or clang; without one it is left out, and said so. Exits with 1 if anything is wrong.
    """
    import mlx.core as mx
    import numpy as np

    from tinymlx.kernels.cases import KERNELS, excess
    from tinymlx.kernels.host import compiler
    from tinymlx.kernels.metal import host_checked

    if name is not None and name not in KERNELS:
        raise UserError(f"there is no kernel {name}; there are {', '.join(KERNELS)}")
    try:
        watched = bool(compiler.native())
    except UserError as error:
        watched = False
        click.echo(f"kernels are not watched: {error}", err=True)
    record: dict[str, Any] = {"machine": describe(), "seed": seed, "kernels": {}}
    good = True
    for kernel in [name] if name else KERNELS:
        rows = []
        for case in KERNELS[kernel](np.random.default_rng(seed)):
            row: dict[str, Any] = {"case": case.label}
            try:
                row["error_over_bound"] = round(excess(case, case.run()), 3)
            except (RuntimeError, UserError) as error:  # it does not compile here, or does not start
                row |= {"error_over_bound": None, "failed": " ".join(str(error).split())[:500]}
            if watched and (row["error_over_bound"] is not None or mx.default_device() != mx.cpu):
                with host_checked() as reports:
                    row["watched_error_over_bound"] = round(excess(case, case.run()), 3)
                row["findings"] = [str(finding) for r in reports for finding in r.findings]
                row["bytes"] = {b: asdict(t) for r in reports for b, t in r.traffic.items()}
            rows.append(row)
        record["kernels"][kernel] = rows
        good &= show(kernel, rows)
    if report:
        try:
            report.write_text(json.dumps(record, indent=1) + "\n")
        except OSError as error:
            raise UserError(f"{report} cannot be written: {error.strerror or error}") from None
        click.echo(report)
    raise SystemExit(0 if good else 1)


def show(kernel: str, rows: list[dict[str, Any]]) -> bool:
    """One line for a kernel, and one for each case that is wrong. -> whether all is well."""
    wrong = [row for row in rows if not right(row)]
    errors = [row["error_over_bound"] for row in rows if row["error_over_bound"] is not None]
    watched = sum("findings" in row for row in rows)
    mark = click.style("✗", fg="red") if wrong else click.style("✓", fg="green")
    worst = f"error at most {max(errors):.2f} of its bound" if errors else "none ran"
    click.echo(
        f"{mark} {kernel:<12} {len(rows)} cases, {worst}, {watched} watched, {sum(len(row.get('findings', [])) for row in rows)} findings"
    )
    for row in wrong:
        click.echo(f"    {row['case']}: error {row['error_over_bound']} of its bound {row.get('failed', '')}")
        for finding in row.get("findings", [])[:3]:
            click.echo(f"        {finding}")
    return not wrong


def right(row: dict[str, Any]) -> bool:
    errors = (row["error_over_bound"], row.get("watched_error_over_bound", 0))
    return all(error is not None and error <= 1 for error in errors) and not row.get("findings")


def describe() -> dict[str, str]:
    import mlx.core as mx

    from tinymlx import __version__

    backend = "metal" if mx.metal.is_available() else "cuda" if mx.cuda.is_available() else "cpu"
    device = mx.device_info().get("device_name", platform.processor())
    return {"system": platform.platform(), "machine": platform.machine(), "backend": backend, "device": str(device), "mlx": mx.__version__,
            "tinymlx": __version__}  # fmt: skip
