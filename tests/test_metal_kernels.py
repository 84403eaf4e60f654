"""Our Metal kernels: right on whatever this machine computes on, and clean under the host checker."""

import json
import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from click.testing import CliRunner
from one_line import fails

from tinymlx import cli, ops, paths
from tinymlx.kernels import metal
from tinymlx.kernels.cases import KERNELS, excess
from tinymlx.kernels.qk_norm_rope import ours as qk_norm_rope
from tinymlx.kernels.rms_norm import rms_norm
from tinymlx.kernels.route import operations
from tinymlx.kernels.w4_matvec import w4_matvec

ROOT = Path(__file__).resolve().parent.parent
SEED = 7
CASES = [(name, index) for name, cases in KERNELS.items() for index, _ in enumerate(cases(np.random.default_rng(SEED)))]


# Each shape is compiled anew on a machine without a cache: the short run takes every third.
SHORT = [pytest.param(*case, marks=[pytest.mark.full] if case[1] % 3 else []) for case in CASES]


def case_of(name, index):
    return list(KERNELS[name](np.random.default_rng(SEED)))[index]


def command(*words):
    return CliRunner().invoke(cli.group, ["kernels", *words], catch_exceptions=False)


@pytest.mark.full
def test_the_command_lists_and_checks(tmp_path):
    assert "w4_matvec    up to 16 rows times a weight" in command("list").output
    report = tmp_path / "report.json"
    done = command("check", "rms_norm", "--report", str(report))
    assert done.exit_code == 0 and "✓ rms_norm" in done.output
    rows = json.loads(report.read_text())["kernels"]["rms_norm"]
    assert len(rows) == 18 and all(row["findings"] == [] and row["error_over_bound"] <= 1 for row in rows)
    assert rows[4]["bytes"]["x"]["distinct"] == rows[4]["bytes"]["x"]["size"]
    fails(lambda: command("check", "no_such"), "there is no kernel no_such")
    fails(lambda: command("check", "rms_norm", "--report", str(tmp_path / "no" / "report")), "cannot be written")


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
            assert anonymous(shown) == anonymous("".join(f"{line}\n" for line in done.output.splitlines()[:4]))
    assert said is None or f"rms_norm.metal:{line_of('total += partial[i]')}" in done.output and said in done.output


def anonymous(report):
    """Which thread is first, and how wrong the values are, differ from run to run and from machine to machine."""
    return re.sub(r"thread(group)? \d+|most [\d.]+|error [\d.]+|\d+ findings", "#", report)


def line_of(text):
    lines = (paths.metal_kernels() / "rms_norm.metal").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_every_file_has_cases_and_a_head():
    files = {file.stem: file.read_text() for file in paths.metal_kernels().glob("*.metal")}
    assert files.keys() == KERNELS.keys()
    for name, text in files.items():
        assert text.startswith(f"// {name}: ")
        for part in ("Shapes", "Grid", "Picture", "Scratch", "Numbers", "Bound by", "Reference  tinymlx/ops/", "week "):
            assert part in text.partition("\n\n")[0] + text, (name, part)
        assert all(len(line) <= 140 for line in text.splitlines())


@pytest.mark.capability("our Metal kernels", host_checked=("apple",))
@pytest.mark.parametrize("name, index", SHORT)
def test_right_here(name, index):
    case = case_of(name, index)
    assert excess(case, case.run()) <= 1, case.label


@pytest.mark.capability("our Metal kernels", host_checked=("apple",))
@pytest.mark.parametrize("name", KERNELS)
def test_clean_under_the_checker(name):
    for case in list(KERNELS[name](np.random.default_rng(SEED)))[::3]:
        with metal.host_checked() as reports:
            got = case.run()
        assert excess(case, got) <= 1, case.label
        assert reports and not any(report.findings for report in reports), (case.label, reports[0])


@pytest.mark.full
@pytest.mark.parametrize("name, index", CASES)
def test_every_case_is_clean_under_the_checker(name, index):
    case = case_of(name, index)
    with metal.host_checked() as reports:
        got = case.run()
    assert excess(case, got) <= 1
    assert not any(report.findings for report in reports), reports[0]


def test_packed_words_are_read_once_for_all_rows():
    rng = np.random.default_rng(SEED)
    packed, scales, biases = mx.quantize(mx.array(rng.standard_normal((64, 1024)).astype(np.float32)))
    w = ops.Linear(packed, None, scales, biases, ops.Quantization(64, 4))
    with metal.host_checked() as reports:
        w4_matvec(mx.array(rng.standard_normal((4, 1024)).astype(np.float32)), w)
    traffic = reports[0].traffic
    assert traffic["w"].read == traffic["w"].distinct == packed.nbytes
    assert traffic["scales"].distinct == scales.nbytes  # two lanes share a group of 64, and a load


def test_a_row_does_not_depend_on_the_others():
    rng = np.random.default_rng(SEED)
    packed, scales, biases = mx.quantize(mx.array(rng.standard_normal((33, 1088)).astype(np.float32)))
    w = ops.Linear(packed, None, scales, biases, ops.Quantization(64, 4))
    x = mx.array(rng.standard_normal((16, 1088)).astype(np.float32))
    together = w4_matvec(x, w)
    for row in (0, 7, 15):
        assert mx.array_equal(w4_matvec(x[row : row + 1], w)[0], together[row])


def test_what_an_include_brings_comes_once():
    text = metal.source("w4_matvec")
    assert "#include" not in text and text.count("inline void load8(const device half*") == 1


def packed(bits=4, group=64, mode="affine", K=128, dtype=mx.float32):
    weight, scales, biases = mx.quantize(mx.ones((8, K)), group_size=group, bits=bits)
    return ops.Linear(weight, None, scales.astype(dtype), biases, ops.Quantization(group, bits, mode))


@pytest.mark.parametrize(
    "x, w, said",
    [
        (mx.ones((1, 128)), ops.Linear(mx.ones((8, 128))), "affine with 4 bits"),
        (mx.ones((1, 128)), packed(bits=8), "affine with 4 bits"),
        (mx.ones((1, 128)), packed(mode="mxfp4"), "affine with 4 bits"),
        (mx.ones((1, 96)), packed(), "divide K"),
        (mx.ones((1, 256)), packed(), r"needs uint32 \[N, 32\]"),
        (mx.ones((1, 128), mx.int32), packed(), "x is mlx.core.int32"),
        (mx.ones((1, 128)), packed(dtype=mx.int32), "scales is mlx.core.int32"),
        (mx.ones((17, 128)), packed(), "17 rows; at most 16"),
    ],
)
def test_w4_matvec_names_what_it_does_not_take(x, w, said):
    with pytest.raises(ValueError, match=said):
        w4_matvec(x, w)


@pytest.mark.parametrize(
    "arguments, said",
    [
        ((mx.ones((2, 8), mx.int32), mx.ones(8), 1e-6), "x is mlx.core.int32"),
        ((mx.ones((2, 8)), mx.ones(7), 1e-6), r"weight has shape \(7,\)"),
        ((mx.ones((2, 8)), mx.ones(8), 1e-6, mx.ones((1, 8))), "residual is"),
        ((mx.array(1.0), mx.ones(1), 1e-6), "weight has shape"),
    ],
)
def test_rms_norm_names_what_it_does_not_take(arguments, said):
    with pytest.raises(ValueError, match=said):
        rms_norm(*arguments)


def heads(**changed):
    """Arguments of qk_norm_rope: four query heads and two of keys, of 16, in two rows of three tokens."""
    arguments = {
        "q": mx.random.normal((2, 3, 64)),
        "k": mx.ones((2, 3, 32)),
        "q_weight": mx.ones(16),
        "k_weight": mx.ones(16),
        "eps": 1e-6,
    }
    return arguments | {"offsets": mx.array([0, 7]), "periods": mx.ones(8), "scale": 1.0} | changed


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"q": mx.ones((2, 3, 64), mx.int32)}, "q is mlx.core.int32"),
        ({"k": mx.ones((2, 3, 32), mx.float16)}, "and k mlx.core.float16"),
        ({"q": mx.ones((2, 3, 72))}, "a multiple of 16"),
        ({"k": mx.ones((1, 3, 32))}, "k has shape"),
        ({"q_weight": None}, "q_weight is None"),
        ({"k_weight": mx.ones(15)}, r"k_weight is mlx.core.float32 \(15,\)"),
        ({"offsets": mx.array([0])}, "offsets is"),
        ({"offsets": mx.zeros(2)}, "offsets is mlx.core.float32"),
        ({"periods": mx.ones((8, 1))}, "periods is"),
    ],
)
def test_qk_norm_rope_names_what_it_does_not_take(changed, said):
    with pytest.raises(ValueError, match=said):
        qk_norm_rope(**heads(**changed))


def test_empty_batches():
    q, k = qk_norm_rope(**heads(q=mx.ones((2, 0, 64)), k=mx.ones((2, 0, 32))))
    assert q.shape == (2, 4, 0, 16) and k.shape == (2, 2, 0, 16)
    assert rms_norm(mx.zeros((0, 8)), mx.ones(8), 1e-6).shape == (0, 8)
    assert w4_matvec(mx.zeros((0, 128)), packed()).shape == (0, 8)


def test_a_transposed_input_is_taken_as_it_is():
    x = mx.random.normal((128, 3)).T
    assert mx.allclose(rms_norm(x, mx.ones(128), 1e-6), ops.rms_norm(x, mx.ones(128), 1e-6), atol=1e-6)
    assert mx.allclose(w4_matvec(x, packed()), x @ ops.dequantize(packed()).T, atol=1e-4)
    turned = heads(q=mx.random.normal((64, 3, 2)).T)
    assert mx.allclose(qk_norm_rope(**turned)[0], operations["qk_norm_rope"].routes["twin"].run(**turned)[0], atol=1e-5)
