"""tinymlx doctor, on this machine and on ones we do not have."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from test_memory import GB, a_mac, a_machine

from tinymlx.blas import Blas
from tinymlx.cli import doctor

FAST, SLOW = (
    Blas("OpenBLAS 0.3", fast=True),
    Blas("reference", fast=False, why_not="no C compiler", next_act="install a C compiler"),
)
H200 = {"device_name": "NVIDIA H200", "total_memory": 150 * GB, "free_memory": 149 * GB}


def a_card(**facts):
    return a_machine(
        gpu="NVIDIA H200", backend="cuda", wheels=("mlx-cuda-12",), device=H200, published_gb_s=4800.0, **facts
    )


def run(tmp_path, *arguments, mlx: str | None = None) -> subprocess.CompletedProcess:
    """The command in a process with an empty home, no network and, if given, `mlx` in the place of MLX's code."""
    path = [*sys.path]
    if mlx is not None:
        (tmp_path / "fake" / "mlx").mkdir(parents=True)
        (tmp_path / "fake" / "mlx" / "__init__.py").write_text(mlx)
        path.insert(0, str(tmp_path / "fake"))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "XDG_", "TINYMLX_"))}
    environment |= {
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(p for p in path if p),
        "https_proxy": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }
    return subprocess.run(
        [sys.executable, "-m", "tinymlx", "doctor", *arguments], env=environment, capture_output=True, text=True
    )


@pytest.mark.capability("doctor")
def test_this_machine_without_cache_or_network(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    for said in (
        "chip",
        "memory",
        "limit",
        "bandwidth",
        "MLX",
        "Qwen3 here",
        "tinymlx chat --model mlx-community/Qwen3-0.6B-4bit",
    ):
        assert said in done.stdout
    done = run(tmp_path, "--json")
    report = json.loads(done.stdout)
    assert report["machine"]["mlx"] and report["limit_bytes"] > 0
    assert [m for m in report["models"] if m["name"] != "smollm2"] == []  # no cache folder yet: an empty list
    assert len(report["qwen3"]) == 21


@pytest.mark.parametrize("mlx", ["raise ImportError('no module called core')", "import os; os.abort()"])
def test_a_broken_mlx_is_told_with_the_cure(tmp_path, mlx):
    done = run(tmp_path, mlx=mlx)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "MLX cannot be used" in done.stdout and "pip install" in done.stdout
    assert "Qwen3 here" in done.stdout  # what would run is still worth knowing


def acts(machine, blas=FAST, python=(3, 12)) -> str:
    return "\n".join(f"{note.what} -> {note.act}" for note in doctor.advice(machine, blas, python))


def test_nothing_to_do():
    assert acts(a_machine(measured={"read_gb_s": 17.0})) == ""
    assert acts(a_mac(measured={"read_gb_s": 300.0})) == ""
    assert acts(a_card(measured={"read_gb_s": 3000.0}), SLOW) == ""  # a card multiplies by itself


@pytest.mark.parametrize(
    "machine, blas, python, said",
    [
        (a_machine(), FAST, (3, 12), "run `tinymlx bench`"),
        (a_machine(), SLOW, (3, 12), "no C compiler -> install a C compiler"),
        (a_machine(), FAST, (3, 9), "use Python 3.11 or later"),
        (
            a_machine(mlx=None, backend=None, mlx_error="No module named 'mlx'", wheels=()),
            FAST,
            (3, 12),
            "pip install '.[cpu]'",
        ),
        (
            a_machine(mlx=None, backend=None, mlx_error="x", gpu="NVIDIA L4", wheels=()),
            FAST,
            (3, 12),
            "'.[cuda12]' (or cuda13)",
        ),
        (a_machine(wheels=("mlx-cpu", "mlx-cuda-12")), FAST, (3, 12), "uninstall mlx-cpu mlx-cuda-12 mlx, then"),
        (a_machine(gpu="NVIDIA L4"), FAST, (3, 12), "leaves the NVIDIA L4 idle"),
        (a_machine(gpu="NVIDIA L4", wheels=("mlx-cuda-12",)), FAST, (3, 12), "nvidia-smi"),
        (
            a_mac(rosetta=True, architecture="x86_64", mlx=None, backend=None, mlx_error="x"),
            FAST,
            (3, 12),
            "install an arm64 Python",
        ),
        (
            a_mac(architecture="x86_64", chip="Intel(R) Core(TM) i7", mlx=None, backend=None, mlx_error="x"),
            FAST,
            (3, 12),
            "Intel Macs",
        ),
        (a_mac(release="macOS 13.6"), FAST, (3, 12), "update to macOS 14"),
    ],
)
def test_each_ill_has_its_cure(machine, blas, python, said):
    assert said in acts(machine, blas, python)


def test_only_a_missing_mlx_breaks_everything():
    assert [note.broken for note in doctor.advice(a_machine(mlx=None, mlx_error="x", wheels=()), SLOW, (3, 12))][0]
    assert not any(note.broken for note in doctor.advice(a_machine(wheels=("mlx-cpu", "mlx-cuda-12")), SLOW, (3, 9)))


@pytest.mark.parametrize(
    "machine",
    [
        a_machine(),
        a_mac(),
        a_card(),
        a_mac(mlx=None, backend=None, device={}, mlx_error="x"),
        a_machine(measured={"read_gb_s": 17.0, "matvec_4bit_gb_s": 0.7}),
    ],
)
def test_the_ranking(machine):
    rows = doctor.ranking(machine)
    assert len(rows) == 21
    fitting = [row["max_context"] > 0 for row in rows]
    assert fitting == sorted(fitting, reverse=True)  # what does not fit comes last
    if machine.bandwidth_gb_s is None:
        assert all(row["tokens_per_s_at_most"] is None and row["likely_tokens_per_s"] is None for row in rows)
    else:
        speeds = [row["likely_tokens_per_s"] for row in rows if row["max_context"]]
        assert speeds == sorted(speeds, reverse=True)
        assert all(0 < row["likely_tokens_per_s"] < row["tokens_per_s_at_most"] for row in rows)
    for row in rows:
        assert row["repository"] == f"mlx-community/{row['model']}-{row['packing']}"
        assert row["command"] == (f"tinymlx chat --model {row['repository']}" if row["max_context"] else None)
    assert {row["packing"] for row in rows} == {"4bit", "8bit", "bf16"}


def test_what_fits_a_mac_and_a_card():
    on_mac = {(row["model"], row["packing"]): row for row in doctor.ranking(a_mac())}
    assert on_mac["Qwen3-4B", "4bit"]["max_context"] == 40960
    assert 0 < on_mac["Qwen3-32B", "4bit"]["max_context"] < 40960  # 18 GB of weights in 27
    assert on_mac["Qwen3-32B", "8bit"]["max_context"] == 0
    assert on_mac["Qwen3-0.6B", "4bit"]["tokens_per_s_at_most"] == pytest.approx(410e9 / 335.2e6, rel=1e-3)
    on_card = doctor.ranking(a_card())
    assert all(row["max_context"] for row in on_card)


def test_a_cpu_needs_twice_the_memory_for_unquantised_weights():
    rows = {(row["model"], row["packing"]): row for row in doctor.ranking(a_machine())}
    assert rows["Qwen3-4B", "bf16"]["weight_bytes"] == pytest.approx(16.1 * GB, rel=0.01)
    assert rows["Qwen3-4B", "bf16"]["max_context"] == 0


def test_shown_are_all_sizes_and_what_is_sensible():
    shown = doctor.worth_showing(doctor.ranking(a_machine(measured={"read_gb_s": 17.0})))
    assert len([row for row in shown if row["packing"] == "4bit"]) == 7
    assert ("Qwen3-8B", "bf16") not in [(row["model"], row["packing"]) for row in shown]


def test_a_cache_that_cannot_be_read_is_not_the_end(monkeypatch):
    import tinymlx.hub

    monkeypatch.setattr(tinymlx.hub, "cached_models", lambda: 1 / 0)
    done = CliRunner().invoke(doctor.command, [])
    assert done.exception is None and "cannot be read" in done.output


def test_the_words_of_a_mac():
    facts = dict(doctor.facts(a_mac(measured={"read_gb_s": 370.0}), FAST, "/usr/bin/cc"))
    assert facts["chip"] == "Apple M4 Max, 14 cores to use, 32 GPU cores"
    assert facts["limit"] == "27.0 GB for a model: the GPU's recommended working set"
    assert facts["bandwidth"] == "370.0 GB/s read by `tinymlx bench`, 410 GB/s says its maker"
    assert "BLAS" not in facts
    assert dict(doctor.facts(a_machine(in_container=True), SLOW, None))["memory"].startswith(
        "16.0 GB of this container"
    )
