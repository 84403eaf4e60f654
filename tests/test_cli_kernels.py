"""tinymlx kernels: what it says of our kernels and of anybody's own, of bad files and wrong words; that it measures what it says."""

import json
import re
import shutil
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from click.testing import CliRunner
from one_line import fails

from tinymlx import cli, paths
from tinymlx.bench import bandwidth
from tinymlx.errors import UserError
from tinymlx.kernels import bench, metal, timing
from tinymlx.kernels import check_file as check_file_module
from tinymlx.kernels.cases import KERNELS
from tinymlx.kernels.check_file import check_file
from tinymlx.kernels.host import strict
from tinymlx.memory.sizes import Size

ROOT = Path(__file__).resolve().parent.parent
needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="needs g++ or clang++")


def command(*words):
    return CliRunner().invoke(cli.group, ["kernels", *words], catch_exceptions=False)


# Our own


@pytest.mark.full
def test_the_command_lists_and_checks(tmp_path):
    assert "w4_matvec    a few rows times a packed weight" in command("list").output
    report = tmp_path / "report.json"
    done = command("check", "rms_norm", "--report", str(report))
    assert done.exit_code == 0 and "✓ rms_norm" in done.output and "· MLX " in done.output.splitlines()[0]
    assert re.search(r"moves at most \d\.\d\d times the bytes of its buffers: .*, most of all \w+", done.output)
    record = json.loads(report.read_text())
    rows = record["kernels"]["rms_norm"]
    assert len(rows) == 18 and all(row["findings"] == [] and row["error_over_bound"] <= 1 for row in rows)
    assert rows[4]["bytes"]["x"]["distinct"] == rows[4]["bytes"]["x"]["size"]
    assert {"system", "chip", "mlx", "python", "backend"} <= record["machine"].keys() and record["compiler"]


@pytest.mark.full
@pytest.mark.parametrize(
    "deleted, said",
    [
        ("threadgroup_barrier(mem_flags::mem_threadgroup);", "race"),
        ("total / float(K)", None),
    ],
)
def test_the_command_shows_what_is_wrong(deleted, said):
    broken = metal.source("rms_norm").replace(deleted, {"total / float(K)": "total"}.get(deleted, ""))
    assert broken != metal.source("rms_norm")
    with metal.overlaid({"rms_norm.metal": broken}):
        done = command("check", "rms_norm")
    assert done.exit_code == 1 and "✗ rms_norm" in done.output
    if said == "race":  # what the READMEs show
        for name in ("README.md", "README.zh-CN.md", "metal_kernels/README.md"):
            shown = re.search(r"```text\n(✗ rms_norm.*?)```", (ROOT / name).read_text(), re.DOTALL)[1]
            assert "uninitialised" in shown
            assert anonymous(shown) == anonymous("".join(f"{line}\n" for line in done.output.splitlines()[1:5]))
    assert said is None or f"rms_norm.metal:{line_of('total += partial[i]')}" in done.output and said in done.output


def anonymous(report):
    """Which thread is first, and how wrong the values are, differ from run to run and from machine to machine."""
    return re.sub(r"thread(group)? \d+|most [\d.]+|error [\d.]+|\d+ findings", "#", report)


def line_of(text):
    lines = (paths.metal_kernels() / "rms_norm.metal").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_no_compiler_is_said_once(own, monkeypatch):
    def missing():
        raise UserError("no C++ compiler; set CXX")

    monkeypatch.setattr("tinymlx.kernels.host.compiler.native", missing)
    if mx.default_device() == mx.cpu:
        fails(lambda: command("check"), "no C++ compiler")
    fails(lambda: command("check", str(own / "softmax.metal")), "no C++ compiler")
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    monkeypatch.setattr("tinymlx.cli.kernels._try", lambda row, key, case: row.update({key: 0.5}))
    done = command("check")
    assert done.exit_code == 0 and done.output.count("not watched: no C++ compiler; set CXX") == 1


@needs_compiler
def test_what_a_compiler_says_is_kept_whole(tmp_path, monkeypatch):
    def run():
        raise RuntimeError("program_source:7:3: error: unknown type name 'bfloat'\n" + 40 * "and more of it\n")

    case = next(KERNELS["rms_norm"](np.random.default_rng(0)))._replace(run=run)
    monkeypatch.setitem(KERNELS, "rms_norm", lambda rng: [case])
    report = tmp_path / "report.json"
    done = command("check", "rms_norm", "--report", str(report))
    assert done.exit_code == 1 and "none ran" in done.output and "unknown type name 'bfloat' and more" in done.output
    assert json.loads(report.read_text())["kernels"]["rms_norm"][0]["failed"].count("and more") == 40


# Anybody's own

SOFTMAX = """// check: grid=128 threadgroup=64 input x=float32:2x150 input n=150 output y=float32:2x150
// check: kernel=softmax<float,2> twin=twins.py:softmax
#include "exponential.metal"
template <typename T, int SIMDGROUPS>
[[kernel]] void softmax(
    const device T* x [[buffer(0)]], constant uint& n [[buffer(1)]], device T* y [[buffer(2)]],
    uint row [[threadgroup_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float part[SIMDGROUPS];
  float sum = 0;
  for (uint i = t; i < n; i += 32 * SIMDGROUPS) sum += exponential(float(x[row * n + i]));
  sum = simd_sum(sum);
  if (t % 32 == 0) part[t / 32] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = t; i < n; i += 32 * SIMDGROUPS) y[row * n + i] = T(exponential(float(x[row * n + i])) / (part[0] + part[1]));
}
"""
TWINS = """import mlx.core as mx
def softmax(x, n):
    return mx.softmax(x, axis=-1)
def count(x):
    return [mx.array([(x == i).sum().item() for i in range(16)], mx.uint32)]
def short(x, n):
    return x[0]
def leaves(x, n):
    raise SystemExit
def loops(x, n):
    while True: pass
def turns(x, n):
    return x + 1j
def writes(x, n):
    y = mx.softmax(x, axis=-1)
    mx.eval(y)
    memoryview(x)[0, 0] = 7
    x[:] = 9
    return y
"""
TWICE = """// check: grid=9 threadgroup=9 input x=float16:9 output y=float16:9 input k=3
// check: call uint i = thread_position_in_grid.x;
// check: call times<half>(x, y, k, i);
template <typename T>
void times(const device T* x, device T* y, int k, uint i) {
  y[i] = x[i] * T(k);
}
"""
COUNT = """// check: grid=500 threadgroup=64 input x=int32:500:0..15 output y=uint32:16:0 twin=twins.py:count
kernel void count(const device int* x, device atomic_uint* y, uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(&y[x[i]], 1u, memory_order_relaxed);
}
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    files = {"softmax.metal": SOFTMAX, "twice.metal": TWICE, "count.metal": COUNT, "twins.py": TWINS}
    files["exponential.metal"] = "inline float exponential(float x) { return exp(x); }\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(ROOT)  # files are found beside the kernel, not where somebody stands
    return tmp_path


@needs_compiler
def test_a_file_says_itself_how_it_is_checked(own):
    report = own / "report.json"
    done = command("check", str(own / "softmax.metal"), "--report", str(report))
    assert done.exit_code == 0 and "✓ softmax.metal: no findings" in done.output
    assert re.search(r"x +1,200 bytes  read 2,400 \(2\.00 times\)", done.output)
    assert re.search(r"y +1,200 bytes  written 1,200 \(1\.00 times\)", done.output)
    assert re.search(r"y +error at most \S+, 1e-05 allowed", done.output)
    record = json.loads(report.read_text())
    assert record["findings"] == [] and record["errors"]["y"]["error"] < 1e-5 and record["machine"]["mlx"]


@needs_compiler
def test_what_is_wrong_with_a_file_is_shown_with_its_line(own):
    text = SOFTMAX.replace("  threadgroup_barrier(mem_flags::mem_threadgroup);\n", "")
    (own / "softmax.metal").write_text(text)
    done = command("check", str(own / "softmax.metal"))
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "part[1]" in line)
    assert done.exit_code == 1 and "✗ softmax.metal: " in done.output
    assert f"softmax.metal:{line}: race: " in done.output
    assert "output y: wrong value: " in done.output


@needs_compiler
@pytest.mark.full
def test_templates_alone_and_options_that_count_more_than_the_file(own):
    checked = check_file(own / "twice.metal", {})
    assert not checked.report.findings, checked.report
    assert np.array_equal(checked.report.outputs[0], 3 * checked.arrays["x"])
    done = command("check", str(own / "twice.metal"), "--grid", "8")
    assert done.exit_code == 1 and "1 elements of y are never written, the first is y[8]" in done.output
    np.save(own / "x.npy", np.arange(9, dtype=np.float16))
    checked = check_file(own / "twice.metal", {"input": [f"x={own / 'x.npy'}", "k=-2"]})
    assert checked.report.outputs[0].tolist() == [-2 * i for i in range(9)]
    assert list(checked.arrays) == ["x", "k", "y"]


@needs_compiler
@pytest.mark.full
def test_what_the_readme_shows(tmp_path):
    text = (paths.metal_kernels() / "README.md").read_text()
    kernel, shown = re.search(
        r"```metal\n(.*?)```.*?```text\n(.*?)```", text[text.index("## Your own") :], re.DOTALL
    ).groups()
    (tmp_path / "twice.metal").write_text(kernel)
    (tmp_path / "twice.py").write_text(re.search(r"`(def twice.*?)`", text)[1])
    done = command("check", str(tmp_path / "twice.metal"))
    assert anonymous(done.output.partition("\n")[2]) == anonymous(shown)
    (tmp_path / "twice.metal").write_text(kernel.replace("y[i] =", "if (i < n) y[i] ="))
    assert command("check", str(tmp_path / "twice.metal")).exit_code == 0


@needs_compiler
@pytest.mark.full
def test_counters_begin_at_0(own):
    checked = check_file(own / "count.metal", {})
    assert not checked.report.findings and checked.errors["y"].magnitude > 0
    report = check_file(own / "count.metal", {"output": ["y=uint32:16"]}).report
    assert "uninitialised output" in {finding.kind for finding in report.findings}


@needs_compiler
@pytest.mark.full
def test_what_only_metal_forbids(own):
    try:
        strict.clang()
    except UserError as error:
        pytest.skip(str(error))
    (own / "count.metal").write_text(COUNT.replace("  atomic", "  double d = 2; atomic"))
    (finding,) = check_file(own / "count.metal", {}).report.findings
    assert finding.kind == "not Metal" and finding.place.line == 3


@pytest.mark.parametrize(
    "name, words, said",
    [
        ("no_such", [], "there is no kernel no_such"),
        ("absent.metal", [], "cannot be read: No such file"),
        (".", [], "is not a file"),
        ("rms_norm", ["--grid", "3"], "--grid is for a file of yours"),
        ("rms_norm", ["--report", "no/such/file"], "no/such/file cannot be written"),
        ("softmax.metal", ["--report", "no/such/file"], "cannot be written"),
        ("softmax.metal", ["--bench"], "--bench measures our own kernels"),
        ("softmax.metal", ["--grid", "0"], "grid '0' is not one to three numbers"),
        ("softmax.metal", ["--grid", "1,2,3,4"], "is not one to three numbers"),
        ("softmax.metal", ["--grid", "65536,65536,65536"], "grid has 281,474,976,710,656 threads"),
        ("softmax.metal", ["--grid", "4096", "--threadgroup", "2048"], "2048 threads; Metal allows 1024"),
        ("softmax.metal", ["--kernel", "softmax"], "name it with its arguments, as in softmax<float>"),
        ("softmax.metal", ["--kernel", "other"], "no kernel other in the text, only softmax"),
        ("softmax.metal", ["--kernel", "softmax<half,2>"], "x is given as float32, but the kernel takes const device half*: float16"),
        ("softmax.metal", ["--input", "x=float33:3"], "there is no dtype 'float33'"),
        ("softmax.metal", ["--input", "x=float32:3x"], "'3x' is not a shape"),
        ("softmax.metal", ["--input", "x=float32:100000x100000"], "x takes more than 1 GiB"),
        ("softmax.metal", ["--input", "x"], "is not NAME=DTYPE:SHAPE"),
        ("softmax.metal", ["--input", "n=1", "--input", "n=2"], "n is given twice"),
        ("softmax.metal", ["--input", "n=-1"], "-1 is no uint32"),
        ("softmax.metal", ["--input", "n=1.5"], "1.5 is no uint32"),
        ("softmax.metal", ["--input", "n=many"], "'many' is not a number"),
        ("softmax.metal", ["--input", "x=float32:2x150:3..1"], "has no numbers in it"),
        ("softmax.metal", ["--call", "y[0] = x[0];"], "give one of them"),
        ("softmax.metal", ["--input", "x=float32:2x150:-inf..inf"], "-inf..inf reaches beyond float32"),
        ("softmax.metal", ["--input", "x=float32:2x150:-1e308..1e308"], "reaches beyond float32"),
        ("softmax.metal", ["--input", "x=int32:2x150:-1e40..1e40"], "reaches beyond float32"),
        ("softmax.metal", ["--input", f"x=float32:2x150:{10**400}"], "is no float32"),
        ("softmax.metal", ["--input", "x=no.npy"], "no.npy cannot be read"),
        ("softmax.metal", ["--input", "z=float32:3"], "the kernel has no buffer z, but x, n, y"),
        ("softmax.metal", ["--output", "x=float32:3"], "x is an input and an output"),
        ("softmax.metal", ["--output", "y=float32:3:1"], "begin with 0"),
        ("softmax.metal", ["--tolerance", "nan"], "tolerance nan is not a number from 0 on"),
        ("softmax.metal", ["--twin", "softmax"], "'softmax' is not FILE.py:FUNCTION"),
        ("softmax.metal", ["--twin", "no.py:f"], "the twin no.py:f failed: FileNotFoundError"),
        ("exponential.metal", [], "does not say its grid"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_one_line(own, name, words, said):
    name = str(own / name) if "." in name else name
    fails(lambda: command("check", name, *words), said)


@pytest.mark.parametrize("values", ["float16", ">f4", "fortran", "0-d", "bool"])
def test_an_array_of_numpy_arrives_as_it_is(tmp_path, values):
    a = np.arange(6).reshape(2, 3).astype(values if values in ("float16", ">f4", "bool") else "int32")
    a = {"fortran": np.asfortranarray(a), "0-d": np.array(5, "int32")}.get(values, a)
    np.save(tmp_path / "x.npy", a)
    x = check_file_module._input("x", str(tmp_path / "x.npy"), None, np.random.default_rng(0))
    assert x.tolist() == a.tolist() and x.shape == a.shape and np.array(x).dtype == a.dtype.newbyteorder("=")


@pytest.mark.parametrize("values", [np.zeros(2, "M8[s]"), np.array(["a"]), np.zeros(2, complex), np.zeros(2, "V2")])
def test_an_array_that_is_no_numbers_is_one_line(tmp_path, values):
    np.save(tmp_path / "x.npy", values)
    fails(lambda: check_file_module._input("x", str(tmp_path / "x.npy"), None, None), "x.npy cannot be read: it holds")


def test_a_twin_that_never_ends_is_one_line(own, monkeypatch):
    monkeypatch.setattr(check_file_module, "TWIN_S", 0.1)
    given = {"twin": [f"{own / 'twins.py'}:loops"]}
    fails(lambda: check_file(own / "softmax.metal", given), "it took more than 0.1 s; mend its loop")


@needs_compiler
def test_a_comment_is_no_kernel_and_a_byte_order_mark_no_text(own):
    text = f"\ufeff/* kernel void other(device float* (q\n*/\n{COUNT}// kernel void third("
    (own / "count.metal").write_text(text)
    checked = check_file(own / "count.metal", {"twin": [f"{own / 'twins.py'}:count"]})
    assert not checked.report.findings, checked.report
    (own / "count.metal").write_text(f"/*\n{COUNT}*/")
    fails(lambda: check_file(own / "count.metal", {}), "has no kernel function")


@needs_compiler
def test_a_twin_may_write_into_its_arguments(own):
    checked = check_file(own / "softmax.metal", {"twin": [f"{own / 'twins.py'}:writes"]})
    assert not checked.report.findings, checked.report


@pytest.mark.parametrize("name", ["softmax.metal", "exponential.metal", "twins.py", "x.npy", "link.json"])
def test_a_report_is_never_written_over_what_is_checked(own, monkeypatch, name):
    monkeypatch.setattr("tinymlx.kernels.check_file.check_file", None)
    np.save(own / "x.npy", np.zeros((2, 150), np.float32))
    (own / "link.json").symlink_to(own / "twins.py")
    before = (own / name).read_bytes()
    words = (str(own / "softmax.metal"), "--input", f"x={own / 'x.npy'}", "--report", str(own / name))
    fails(lambda: command("check", *words), "is a file that the check reads")
    assert (own / name).read_bytes() == before


def test_a_report_is_never_written_over_a_kernel_of_ours():
    kernel = paths.metal_kernels() / "rms_norm.metal"
    fails(lambda: command("check", "rms_norm", "--report", str(kernel)), "is a file that the check reads")


@pytest.mark.parametrize(
    "function, said",
    [
        ("short", "returns shapes"),
        ("turns", "returns complex numbers"),
        ("leaves", "SystemExit"),
        ("none", "no attribute"),
    ],
)
def test_a_twin_that_is_wrong_is_one_line(own, function, said):
    fails(lambda: command("check", str(own / "softmax.metal"), "--twin", f"{own / 'twins.py'}:{function}"), said)


@pytest.mark.parametrize(
    "text, said",
    [
        (b"\xff\xfe\x00kernel", "is not text"),
        (b"kernel void f()\0", "is not text"),
        (b" \n", "is empty"),
        (b"x" * ((1 << 20) + 1), "is larger than 1 MiB"),
        (b"// check: girds=3", ":1: 'girds=3' is not one of kernel, grid"),
        (b"\n// check: input", ":2: 'input' is not one of"),
        (b'// check: kernel="f', ":1: No closing quotation"),
        (b"inline float f(float x) { return x; }", "has no kernel function"),
        (b"kernel void f(device float* y", "parameter list has no end"),
        (b"kernel void f(device float* z) {}", "the kernel has no buffer y"),
        (b"kernel void f(device float* y, device int* z) {}", "nothing is given for device int* z"),
        (b'#include "absent.metal"\nkernel void f(device float* y) {}', "includes absent.metal, which is not beside it"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_line(tmp_path, text, said):
    (tmp_path / "bad.metal").write_bytes(text)
    given = {"grid": ["1"], "threadgroup": ["1"], "output": ["y=float32:1"]}
    fails(lambda: check_file(tmp_path / "bad.metal", given), said)


# Timing


def test_every_kernel_is_measured():
    assert bench.BENCHES.keys() == KERNELS.keys()


def test_the_least_bytes_and_operations():
    size = Size("tiny", 1, 128, 2, 1, 256, True)
    draw = bench.Draw(size, 4, mx.float32, 0)
    x, w = bench._product(draw)
    y = mx.zeros((4, 256))
    packed = 256 * (128 // 2 + 2 * 4 * (128 // 64))
    assert bench.least([x, w], [y]) == (4 * 4 * 128 + packed + 4 * 4 * 256, 2 * 4 * 128 * 256)
    table = draw.packed(1000, 128)  # of which two rows are looked up
    nbytes, flops = bench.least([mx.array([[3], [999]]), table, mx.float32], [mx.zeros((2, 1, 128))])
    assert (nbytes, flops) == (2 * 4 + 2 * (64 + 16) + 2 * 4 * 128, 0)


def test_all_take_turns_and_the_median_counts(monkeypatch):
    clock = iter(
        np.cumsum([0, 9, 0, 9] + [0, 5, 0, 1, 0, 3, 0, 2, 0, 4, 0, 90]).tolist()
    )  # two that warm up, then turns
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    called = []
    runs = {name: lambda x, name=name: called.append(name) or x for name in ("ours", "mlx")}
    monkeypatch.setattr(timing.mx, "default_device", lambda: mx.cpu)
    assert timing.medians(runs, lambda seed: ([mx.ones(1)], {}), rounds=3) == {"ours": 4, "mlx": 2}
    assert called == ["ours", "mlx"] * 4


@needs_compiler
def test_the_command_measures(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "MODELS", (Size("tiny", 1, 128, 2, 1, 256, True),))
    monkeypatch.setattr(bandwidth, "buffer_bytes", lambda machine: 1 << 23)
    done = command("bench", "rms_norm", "--rounds", "1", "--json", str(tmp_path / "bench.json"))
    assert done.exit_code == 0 and re.search(r"rms_norm +tiny +1 ", done.output) and "copy: " in done.output
    record = json.loads((tmp_path / "bench.json").read_text())
    result = record["bench"]["results"][0]
    assert result["seconds"].keys() == {"ours", "mlx", "twin"} and result["factor"] > 0
    assert record["bench"]["copy_gb_s"] > 0 and record["machine"]["mlx"]
    assert json.loads(command("bench", "rms_norm", "--rounds", "1", "--json", "-").output)["bench"]["rounds"] == 1


def test_what_fails_is_told_and_the_rest_measured(monkeypatch):
    def fails_here(x, weight, eps):
        raise RuntimeError("no such instruction\nat line 3")

    entry = bench.BENCHES["rms_norm"]._replace(ours=fails_here)
    monkeypatch.setitem(bench.BENCHES, "rms_norm", entry)
    monkeypatch.setattr(bench, "MODELS", (Size("tiny", 1, 128, 2, 1, 256, True),))
    monkeypatch.setattr(bandwidth, "buffer_bytes", lambda machine: 1 << 23)
    out = command("bench", "rms_norm").output
    assert "failed" in out and "ours: no such instruction at line 3" in out


def test_a_wrong_word_of_bench_is_one_line_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "run", None)
    fails(lambda: command("bench", "no_such"), "there is no kernel no_such to measure")
    fails(lambda: command("bench", "--json", str(tmp_path / "no" / "file")), "cannot be written")
