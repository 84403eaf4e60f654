"""The status table of the README: what has run where, taken from test results.

A test says what it stands for: `@pytest.mark.capability("chat on SmolLM2")`. Then

    pytest --status-out=benchmarks/results/status     records the outcome there, in <linux-cpu|cuda|apple>.json;
                                                      capabilities that this run did not touch keep their record
    python tests/status.py                            rewrites the table from those files
    python tests/status.py --check FILE               fails if the table calls anything run that a fresh FILE does not
"""

import json
import platform
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results" / "status"
COLUMNS = {"linux-cpu": "Linux CPU", "cuda": "CUDA", "apple": "Apple"}
START, END = "<!-- status table: written by tests/status.py -->", "<!-- end of status table -->"


class StatusPlugin:
    """Counts the outcomes of each capability's tests and writes them when the session ends."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.capabilities: dict[str, dict] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        for mark in item.iter_markers("capability"):
            self.count(report, *mark.args, **mark.kwargs)
        return report

    def count(self, report, name: str, host_checked: tuple[str, ...] = ()) -> None:
        entry = self.capabilities.setdefault(name, {"passed": 0, "failed": 0, "skipped": 0})
        if host_checked:
            entry["host_checked"] = sorted({*entry.get("host_checked", ()), *host_checked})
        if report.failed:  # in setup or teardown too
            entry["failed"] += 1
        elif report.skipped:
            entry["skipped"] += 1
        elif report.when == "call":
            entry["passed"] += 1

    def pytest_sessionfinish(self):
        import mlx.core as mx

        file = self.folder / f"{platform_name()}.json"
        before = json.loads(file.read_text())["capabilities"] if file.exists() else {}
        record = {
            "machine": f"{platform.system()} {platform.machine()}",
            "mlx": mx.__version__,
            "capabilities": before | self.capabilities,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def platform_name() -> str:
    """Which column of the table this machine fills."""
    import mlx.core as mx

    if sys.platform == "darwin":
        return "apple"
    return "cuda" if mx.cuda.is_available() else "linux-cpu"


def ran(entry: dict | None) -> bool:
    return entry is not None and entry["passed"] > 0 and entry["failed"] == 0


def read_results(folder: Path = RESULTS) -> dict[str, dict]:
    """Column -> its record; columns without a file are absent."""
    return {
        name: json.loads((folder / f"{name}.json").read_text())
        for name in COLUMNS
        if (folder / f"{name}.json").exists()
    }


def table(results: dict[str, dict]) -> str:
    """The Markdown between the markers."""
    recorded = [record["capabilities"] for record in results.values()]
    lines = [f"| | {' | '.join(COLUMNS.values())} |", "|---|" + "---|" * len(COLUMNS)]
    for name in sorted({name for capabilities in recorded for name in capabilities}):
        cells = []
        for column in COLUMNS:
            entry = results.get(column, {}).get("capabilities", {}).get(name)
            checked = any(ran(c.get(name)) and column in c[name].get("host_checked", ()) for c in recorded)
            cells.append("run" if ran(entry) else "host-checked" if checked else "not run")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    machines = [f"{COLUMNS[column]}: {record['machine']}, MLX {record['mlx']}" for column, record in results.items()]
    lines += ["", f"Last recorded on {'; '.join(machines)}." if machines else "Nothing is recorded yet."]
    return "\n".join(lines)


def with_table(readme: str, results: dict[str, dict]) -> str:
    before, _, rest = readme.partition(START)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"README.md has no line {START!r} followed by {END!r}")
    return f"{before}{START}\n{table(results)}\n{END}{after}"


def declared(folder: Path = ROOT / "tests") -> set[str]:
    """The capabilities that some test stands for."""
    sources = "\n".join(path.read_text() for path in folder.rglob("test_*.py"))
    return set(re.findall(r'mark\.capability\(\s*"([^"]+)"', sources))


def broken_claims(fresh: Path, results: dict[str, dict]) -> list[str]:
    """Capabilities that the table calls run on this file's column, and that did not run in `fresh`."""
    capabilities = json.loads(fresh.read_text())["capabilities"]
    claimed = results.get(fresh.stem, {"capabilities": {}})["capabilities"]
    return sorted(name for name, entry in claimed.items() if ran(entry) and not ran(capabilities.get(name)))


def main(arguments: list[str]) -> None:
    results = read_results()
    if arguments[:1] == ["--check"]:
        broken = broken_claims(Path(arguments[1]), results)
        sys.exit(f"README.md calls these run, and they were not: {'; '.join(broken)}" if broken else 0)
    README.write_text(with_table(README.read_text(), results))


if __name__ == "__main__":
    main(sys.argv[1:])
