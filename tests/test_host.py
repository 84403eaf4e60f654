"""The host checker: Metal kernels on this CPU. Sound ones are right and clean, broken ones caught where they break."""

import os
import platform
import shutil
import stat
import subprocess

import broken_kernels
import metal_cases
import mlx.core as mx
import numpy as np
import pytest
from one_line import fails

from tinymlx.errors import UserError
from tinymlx.kernels import host
from tinymlx.kernels.host import checker, compiler, compose

pytestmark = [
    pytest.mark.capability("Metal kernels checked on any CPU"),
    pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="needs g++ or clang++"),
]

SOUND = [pytest.param(name, make, id=name) for name, make in metal_cases.CASES.items()]
# One of each kind in the short run; all of them in the full one.
FIRST = {broken.kind: broken for broken in reversed(broken_kernels.BROKEN)}.values()
BROKEN = [
    pytest.param(broken, id=broken.name, marks=[] if broken in FIRST else pytest.mark.full)
    for broken in broken_kernels.BROKEN
]


def one_line_kernel(source, *, header="", outputs=1, **options):
    return host.Kernel(
        name="small", input_names=["x"], output_names=["y", "z"][:outputs], header=header, source=source, **options
    )


def launch(x, *, shape=None, dtype=mx.float32, threads=32, count=None, **more):
    x = mx.array(x)
    return dict(
        inputs=[x],
        grid=(count or x.size, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[shape or x.shape],
        output_dtypes=[dtype],
        **more,
    )


def text_of(call: dict) -> dict:
    return {k: v for k, v in call.items() if k not in ("grid", "threadgroup", "init_value")}


# Sound kernels


@pytest.mark.parametrize(
    "name, make",
    [
        pytest.param(*sound.values, id=sound.id, marks=[pytest.mark.full] if at % 3 else [])
        for at, sound in enumerate(SOUND)
    ],
)
def test_a_sound_kernel_is_right_and_clean(name, make):
    case = make()
    report = case.check()
    assert not report.findings and not report.notes, str(report)
    (got,) = host.Kernel(**case.kernel)(**case.launch)
    assert mx.array_equal(got, report.outputs[0])


@pytest.mark.full
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize(
    "make", [metal_cases.map_row, metal_cases.softmax, metal_cases.transpose, metal_cases.w4_dot, metal_cases.product]
)
def test_the_same_in_half_and_bfloat(make, dtype):
    report = make(dtype).check()
    assert not report.findings, str(report)


@pytest.mark.parametrize("n", [1, pytest.param(7, marks=pytest.mark.full), 8, pytest.param(33, marks=pytest.mark.full)])
def test_small_inputs_arrive_in_another_address_space(n):
    case = metal_cases.map_row(n=n)
    kernel = host.Kernel(**case.kernel)
    text = kernel.composed(**case.text).text
    assert ("const constant float* x" if n < 8 else "const device float* x") in text
    assert "const constant float& a" in text
    # as for Apple's compiler, a helper that wants `device` memory would not do for a small input; the CPU cannot tell
    assert not case.check().findings


def test_bytes_are_counted():
    report = metal_cases.w4_dot(N=5, K=512).check()
    weight, x, y = (report.traffic[name] for name in ("w", "x", "y"))
    assert (weight.size, weight.read, weight.distinct) == (5 * 512 // 2,) * 3
    assert (x.size, x.read, x.distinct) == (512 * 4, 5 * 512 * 4, 512 * 4)  # again for each row
    assert (y.written, y.read) == (5 * 4, 0)
    assert metal_cases.scan().check().scratch == {"sums": 128}


# Broken kernels


def test_each_edit_that_breaks_a_kernel_applies():
    assert len(broken_kernels.BROKEN) >= 60
    assert len({(b.case, b.old, b.new, b.nth) for b in broken_kernels.BROKEN}) == len(broken_kernels.BROKEN)
    assert [b for b in broken_kernels.BROKEN if not b.applies()] == []
    assert {b.kind for b in broken_kernels.BROKEN} <= {*host.KINDS, *checker.HARMLESS}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_kernel_is_caught(broken):
    case = metal_cases.CASES[broken.case]()
    report = case.check(broken.edit, seconds=1)
    line = broken.line()
    found = [f for f in report.findings + report.notes if f.kind == broken.kind]
    assert found, str(report)
    if line:
        assert any(line in f.lines for f in found), f"line {line} expected\n{report}"
        assert all(f.place.file.startswith(broken.case) for f in found)


def test_a_race_names_both_lines_and_threads():
    case = metal_cases.CASES["stencil"]()
    report = case.check(lambda text: text.replace("threadgroup_barrier(mem_flags::mem_threadgroup);", ""))
    (race,) = [f for f in report.findings if f.kind == "race"]
    assert sorted(race.lines) == [4, 9] and race.place.thread != race.other.thread
    assert "with no barrier" in str(race) and "stencil.metal:9" in str(race)


def test_a_crash_is_a_finding():
    deep = (
        "thread float big[100000]; for (int k = 0; k < 100000; k++) big[k] = x[i % 3 + k % 2]; y[i] = big[int(x[0])];"
    )
    kernel = one_line_kernel("uint i = thread_position_in_grid.x;\n" + deep)
    report = kernel.check(**launch(np.zeros(32, np.float32)))
    assert [f.kind for f in report.findings] == ["stack overflow"]


def test_a_division_by_zero_is_a_finding():
    kernel = one_line_kernel("uint i = thread_position_in_grid.x;\ny[i] = 7 / int(x[i]);")
    report = kernel.check(**launch(np.zeros(32, np.float32)))
    assert [(f.kind, f.place.line) for f in report.findings] == [("division by zero", 2)]


# Values


def test_bfloat_rounds_as_mlx_does():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2**32, 4000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x[:6] = [0, np.inf, -np.inf, np.nan, 3.3895314e38, 1e-45]
    kernel = one_line_kernel("uint i = thread_position_in_grid.x;\ny[i] = bfloat16_t(x[i]);")
    (got,) = kernel(**launch(x, dtype=mx.bfloat16))
    assert mx.array_equal(got, mx.array(x).astype(mx.bfloat16), equal_nan=True)


SIMD = {  # operation on `v`, the value of lane `l` -> what numpy says of the 32 values
    "simd_sum(v)": lambda v: np.full(32, v.sum()),
    "simd_product(1 + v / 100)": lambda v: np.full(32, (1 + v / 100).prod()),
    "simd_max(v)": lambda v: np.full(32, v.max()),
    "simd_min(v)": lambda v: np.full(32, v.min()),
    "simd_prefix_inclusive_sum(v)": lambda v: v.cumsum(),
    "simd_prefix_exclusive_sum(v)": lambda v: v.cumsum() - v,
    "simd_broadcast(v, 5)": lambda v: np.full(32, v[5]),
    "simd_broadcast_first(v)": lambda v: np.full(32, v[0]),
    "simd_shuffle(v, (l * 7) % 32)": lambda v: v[np.arange(32) * 7 % 32],
    "simd_shuffle_xor(v, 9)": lambda v: v[np.arange(32) ^ 9],
    "simd_shuffle_down(v, 3)": lambda v: np.concatenate([v[3:], v[29:]]),
    "simd_shuffle_up(v, 3)": lambda v: np.concatenate([v[:3], v[:29]]),
    "simd_shuffle_rotate_down(v, 3)": lambda v: np.roll(v, -3),
    "simd_shuffle_rotate_up(v, 3)": lambda v: np.roll(v, 3),
    "simd_shuffle_and_fill_down(v, 8.0f, 2)": lambda v: np.concatenate([v[2:], [8, 8]]),
    "simd_shuffle_and_fill_up(v, 8.0f, 2)": lambda v: np.concatenate([[8, 8], v[:30]]),
    "simd_any(v > 2) + 2 * simd_all(v > -9)": lambda v: np.full(32, (v > 2).any() + 2 * (v > -9).all()),
    "popcount(uint(ulong(simd_ballot(v > 0))))": lambda v: np.full(32, (v > 0).sum()),
    "simd_or(l) + simd_xor(l) + simd_and(l | 1)": lambda v: np.full(32, 31 + 0 + 1),
    "quad_sum(v)": lambda v: v.reshape(8, 4).sum(1).repeat(4),
    "quad_max(v)": lambda v: v.reshape(8, 4).max(1).repeat(4),
    "quad_broadcast(v, 2)": lambda v: v.reshape(8, 4)[:, 2].repeat(4),
    "quad_shuffle_xor(v, 3)": lambda v: v.reshape(8, 4)[:, ::-1].reshape(-1),
}


def test_simd_and_quad_operations():
    lines = "\n".join(f"y[{k} * 32 + l] = {operation};" for k, operation in enumerate(SIMD))
    kernel = one_line_kernel(f"uint l = thread_index_in_simdgroup;\nfloat v = x[l];\n{lines}")
    v = np.random.default_rng(0).standard_normal(32).astype(np.float32)
    want = np.stack([f(v.astype(np.float64)) for f in SIMD.values()]).astype(np.float32)
    report = kernel.check(**launch(v, shape=want.shape), expected=[want])
    assert not report.findings, str(report)


MATH = {
    "exp(v)": np.exp,
    "exp2(v)": np.exp2,
    "log(abs(v))": lambda v: np.log(np.abs(v)),
    "rsqrt(abs(v))": lambda v: np.abs(v) ** -0.5,
    "fast::exp(v) + precise::sin(v)": lambda v: np.exp(v) + np.sin(v),
    "clamp(v, -1.0f, 0.5f)": lambda v: np.clip(v, -1, 0.5),
    "fma(v, 2.0f, 1.0f)": lambda v: 2 * v + 1,
    "select(v, -v, v < 0)": np.abs,
    "float(as_type<uint>(v) >> 31)": lambda v: v < 0,
    "dot(float4(v, 1, 2, 3), float4(1, v, 1, 1))": lambda v: 2 * v + 5,
    "float2(v, 1).yx.x + float4(v).zzw.y": lambda v: 1 + v,
    "float(half(v) * 1.0h)": lambda v: v.astype(np.float16),
    "float(metal::max(int(v * 10), -3))": lambda v: np.maximum(np.trunc(v * 10), -3),
    "all(float3(v) == float3(v)) ? rint(v) : 0.0f": np.rint,
    "float(int4(1, 2, 3, 4)[uint(l) % 4]) + float(ushort2(l, 1).x)": lambda v: np.arange(32) % 4 + 1 + np.arange(32),
    "pow(abs(v), 1.5f) + sign(v)": lambda v: np.abs(v) ** 1.5 + np.sign(v),
    "(v > 0 ? INFINITY : -INFINITY) > 0 ? 1.0f : 0.0f": lambda v: v > 0,
}


def test_mathematics_and_vectors():
    lines = "\n".join(f"y[{k} * 32 + l] = {operation};" for k, operation in enumerate(MATH))
    kernel = one_line_kernel(f"ushort l = thread_index_in_simdgroup;\nfloat v = x[l];\n{lines}")
    v = np.random.default_rng(0).standard_normal(32).astype(np.float32)
    want = np.stack([np.asarray(f(v), np.float32) for f in MATH.values()])
    (got,) = kernel(**launch(v, shape=want.shape))
    for operation, row, right in zip(MATH, np.array(got), want):
        assert np.allclose(row, right, rtol=1e-5, atol=1e-5), operation


def test_a_swizzle_can_be_assigned_and_a_ragged_threadgroup_is_smaller():
    source = """float4 v = 0.0f;
v.zw = float2(threads_per_threadgroup.x, dispatch_threads_per_threadgroup.x);
v.x = thread_index_in_threadgroup;
*(device float4*)(y + 4 * thread_position_in_grid.x) = v;"""
    kernel = one_line_kernel(source + "\n(void)x;")
    (y,) = kernel(**launch(np.zeros(40, np.float32), shape=(40, 4)))
    assert y[39].tolist() == [7, 0, 8, 32] and y[31].tolist() == [31, 0, 32, 32]


# Around the kernel


def test_a_call_works_on_the_arrays_own_memory():
    x = mx.arange(6.0)
    mx.eval(x)
    checker.view(x)[:4] = np.frombuffer(np.float32(9).tobytes(), np.uint8)
    assert x[0].item() == 9


def test_the_text_is_what_mlx_writes(capfd):
    kernel = one_line_kernel("y[thread_position_in_grid.x] = x_shape[0] + T(x[0]);")
    composed = kernel.composed(**text_of(launch(mx.arange(9), template=[("T", mx.float16)])))
    assert capfd.readouterr().out == ""
    assert [p.name for p in composed.buffers] == ["x", "x_shape", "y"]
    assert "template <typename T>" in composed.text and composed.function.endswith("<float16_t>")


def test_scratch_is_found_in_every_form():
    text = """
threadgroup float a[32]; threadgroup typename Tile<A, 2 * B>::type b[N == 0 ? 1 : N][4], c;
alignas(16) threadgroup T d[8];
threadgroup float* p = a; void f(const threadgroup T* q, threadgroup T r[8]) threadgroup { (threadgroup uint&)x; }
"""
    found = [
        line.split("host_type_")[1].split("[")[0].strip("; ") for line in compose.translate(text).split("typedef")[1:]
    ]
    assert [name.split(";")[0] for name in found] == ["a", "b", "c", "d"]
    assert "threadgroup" not in compose.translate(text).replace("whole_threadgroup", "")
    assert compose.translate(text).count("\n") == text.count("\n")


def test_a_compile_error_is_one_line_with_the_kernels_own():
    kernel = one_line_kernel(
        "add(x, y);", header="// one\nvoid add(const device float* x, device float* y) {\n  y[0] = x[0] + z;\n}\n"
    )
    with pytest.raises(host.CompileError) as error:
        kernel(**launch(np.zeros(32, np.float32)))
    assert str(error.value).startswith("small.metal:3: ") and "\n" not in str(error.value) and "'z'" in str(error.value)


WHOLE = """#include <metal_stdlib>
using namespace metal;
[[kernel]] void scale(const device float* x [[buffer(0)]], device float* y [[buffer(1)]],
                      constant float& by [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  y[i] = by * x[i];
}
"""


def test_a_whole_metal_file():
    x = mx.arange(40.0)
    call = dict(
        inputs={"x": x, "by": mx.array(3.0)},
        outputs={"y": ((40,), mx.float32)},
        grid=(40, 1, 1),
        threadgroup=(32, 1, 1),
    )
    assert mx.array_equal(host.run_text(WHOLE, **call)[0], 3 * x)
    assert host.check_text(WHOLE, "scale", **call).findings == []
    (finding,) = host.check_text(WHOLE.replace("x[i]", "x[i + 1]"), file="scale.metal", **call).findings
    assert finding.kind == "out of bounds" and str(finding.place) == "scale.metal:5"
    fails(lambda: host.run_text(WHOLE, **{**call, "inputs": {"x": x}}), "no array for the parameter by")


PADDED = """struct Best { half value; int where; };
"""


def test_padding_is_not_uninitialised_memory():
    source = """threadgroup float3 s[32]; threadgroup Best best[32]; threadgroup half3 h[32];
threadgroup float4 four[32];
uint t = thread_index_in_threadgroup;
s[t].x = x[t]; s[t].y = 1; s[t].z = 2;
best[t].value = half(x[t]); best[t].where = t;
h[t] = half3(x[t], 1, 2); four[t].xyz = s[t];
threadgroup_barrier(mem_flags::mem_threadgroup);
float3 v = s[31 - t]; Best b = best[31 - t]; half3 u = h[31 - t];
y[t] = v.x + v.y + v.z + float(b.value) + b.where + float(u.x + u.y + u.z);"""
    kernel = one_line_kernel(source, header=PADDED)
    x = np.arange(32, dtype=np.float32)
    report = kernel.check(**launch(x), expected=[3 * x[::-1] + 6 + np.arange(32)[::-1]])
    assert report.findings == [], str(report)
    unset = one_line_kernel(
        source.replace("float3 v = s[31 - t];", "float4 w = four[31 - t]; float3 v = w.xyz * w.w;"), header=PADDED
    )
    assert [f.kind for f in unset.check(**launch(x)).findings] == ["uninitialised threadgroup memory"]


EXCHANGE = """uint t = thread_index_in_threadgroup;
y[t] = x[thread_position_in_grid.x];
threadgroup_barrier(mem_flags::mem_device);
z[t] = y[63 - t];"""


def test_threads_may_meet_in_device_memory():
    kernel = one_line_kernel(EXCHANGE, outputs=2)
    call = launch(np.arange(64, dtype=np.float32), threads=64)
    call |= dict(output_shapes=[(64,), (64,)], output_dtypes=[mx.float32] * 2)
    assert kernel.check(**call).findings == []
    broken = one_line_kernel(EXCHANGE.replace("mem_device", "mem_threadgroup"), outputs=2).check(**call)
    assert [(f.kind, sorted(f.lines)) for f in broken.findings] == [("race", [2, 4])]
    apart = kernel.check(**{**call, "grid": (128, 1, 1), "inputs": [mx.arange(128.0)]})  # two threadgroups, one output
    assert "race" in [f.kind for f in apart.findings]


def test_an_output_must_be_written_before_it_is_read():
    kernel = one_line_kernel("uint i = thread_position_in_grid.x;\ny[i] += x[i];")
    call = launch(np.ones(32, np.float32))
    assert [f.kind for f in kernel.check(**call).findings] == ["uninitialised output"]
    report = kernel.check(**call, init_value=2, expected=[np.full(32, 3)])
    assert report.findings == [] and report.traffic["y"].read == report.traffic["y"].written == 128


CLANG = next(filter(shutil.which, (f"clang++-{n}" for n in range(22, 14, -1))), "clang++")
COMPILERS = {
    "aarch64": (("aarch64-linux-gnu-g++",), (), ("qemu-aarch64",)),
    "clang": ((CLANG,), ("-march=native" if platform.machine() == "x86_64" else "-mcpu=native",), ()),
}


@pytest.mark.full
@pytest.mark.parametrize("name", COMPILERS)
def test_another_cpu_and_another_compiler(name):
    """The fiber switch and the hooks on aarch64, under qemu-user; clang's instrumentation."""
    command, target, runner = COMPILERS[name]
    missing = [tool for tool in (*command, *runner) if not shutil.which(tool)]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    if "clang version 14" in version:
        pytest.skip("clang 14 has no _Float16")
    other = compiler.Compiler(command, version, target, runner)
    for make in metal_cases.CASES.values():
        assert not make().check(using=other, schedules=3).findings
    for make in (metal_cases.map_row, metal_cases.product):
        for dtype in (mx.float16, mx.bfloat16):
            assert not make(dtype).check(using=other, schedules=3).findings
    for broken in broken_kernels.BROKEN:
        if broken.kind == "misaligned pointer" and not runner:
            continue  # clang does not ask where a structure is copied from
        report = metal_cases.CASES[broken.case]().check(broken.edit, seconds=5, using=other, schedules=3)
        found = [f for f in report.findings + report.notes if f.kind == broken.kind]
        assert found and (not broken.line() or any(broken.line() in f.lines for f in found)), f"{broken}\n{report}"


@pytest.mark.full
@pytest.mark.parametrize("line", ["y[0] = std::max(x[0], 1.0f);", "double d = x[0]; y[0] = d", "throw 1;"])
def test_what_is_not_metal_does_not_compile(line):
    assert one_line_kernel(line).check(**launch(np.zeros(8, np.float32))).findings[0].kind == "compile error"


def test_bad_arguments():
    kernel = one_line_kernel("y[0] = x[0];")
    good = launch(np.zeros(8, np.float32))
    fails(lambda: kernel(**{**good, "threadgroup": (2048, 1, 1), "grid": (2048, 1, 1)}), "2048", "1024")
    fails(lambda: kernel(**{**good, "inputs": []}), "0 inputs given, 1 named")
    fails(lambda: kernel(**{**good, "grid": (8, 1)}), "three sizes")
    fails(lambda: kernel(**{**good, "output_shapes": [(8,), (8,)]}), "MLX refuses")
    fails(lambda: compose.parse("void f() {}"), "0 kernels")
    fails(lambda: compose.parse("[[kernel]] void f(device float* x [[buffer(0)]]) {}", "g"), "no kernel g", "f")


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    compiler.native.cache_clear()
    try:
        fails(
            lambda: one_line_kernel("y[0] = x[0];")(**launch(np.zeros(8, np.float32))), "no C++ compiler", "install g++"
        )
    finally:
        compiler.native.cache_clear()


def test_a_compiler_too_old_for_our_own_text_is_named():
    error = compiler.first_error("/somewhere/metal.h:12:9: error: '_Float16' does not name a type")
    assert "_Float16" in str(error) and "set CXX" in str(error) and not error.file


@pytest.mark.parametrize(
    "chosen, said",
    [
        ("no_such", "there is no such program"),
        *((name, "is no compiler of C++20") for name in ("false", "true", "cat", "sh", "sh -c")),
        ("g++ -O0", None),
    ],
)
def test_any_program_may_stand_in_cxx(monkeypatch, chosen, said):
    monkeypatch.setenv("CXX", chosen)
    if not shutil.which(chosen.split()[0]) and said != "there is no such program":
        pytest.skip(f"no {chosen}")
    if said:
        fails(compiler.native.__wrapped__, f"CXX={chosen}", said, "unset it")
    else:
        assert compiler.native.__wrapped__().command == ("g++", "-O0")


def test_the_cache_is_private_and_keyed_by_everything(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert stat.S_IMODE(compiler.cache_folder().stat().st_mode) == 0o700
    kernel = one_line_kernel("uint i = thread_position_in_grid.x;\ny[i] = x[i];")
    composed = kernel.composed(**text_of(launch(np.zeros(8, np.float32))))
    path = compiler.library(composed)
    made = path.stat().st_ino
    assert compiler.library(composed) == path and path.stat().st_ino == made
    assert sorted(path.parent.iterdir()) == [path]  # nothing half made is left
    os.utime(path, (0, 0))
    compiler.prune(path.parent)
    assert not path.exists()
    monkeypatch.setattr(compiler, "FAST", [*compiler.FAST, "-DOTHER"])
    assert compiler.library(composed) != path
    monkeypatch.setattr(compiler, "cpu_features", lambda: "another CPU")
    assert len({compiler._key(composed), compiler._key(composed, "more"), path.stem}) == 3
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    fails(compiler.cache_folder, "XDG_CACHE_HOME")


@pytest.mark.parametrize(
    "damage", [lambda made: made[: len(made) // 2], lambda made: b"", lambda made: b"x" * len(made)]
)
def test_a_damaged_file_of_the_cache_is_built_again(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = []
    monkeypatch.setattr(compiler, "_compile", lambda *given: compile_once(built, given))
    composed = one_line_kernel("y[0] = x[0];").composed(**text_of(launch(np.zeros(8, np.float32))))
    path = compiler.library(composed)
    path.write_bytes(damage(path.read_bytes()))
    assert compiler.library(composed) == compiler.library(composed) == path and len(built) == 2
    assert compiler.load(path).anything() == 3


def compile_once(built, given):
    *_, folder = given
    built.append(folder)
    (folder / "small.cpp").write_text('extern "C" int anything() { return 3; }')
    return compiler._build([folder / "small.cpp"], compiler.native(), ["-shared", "-fPIC"], folder)


def test_a_cache_that_cannot_be_used_names_what_to_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert compiler.cache_folder() == tmp_path / "here" / "tinymlx" / "host"
    kernel = one_line_kernel("y[thread_position_in_grid.x] = x[0];")
    assert not kernel.check(**launch(np.zeros(8, np.float32)), schedules=1).findings
    for path in compiler.cache_folder().iterdir():
        path.chmod(0o600)  # as where programs may not run
    fails(lambda: kernel.check(**launch(np.zeros(8, np.float32))), "Permission denied", "XDG_CACHE_HOME")
    (tmp_path / "garbage").write_bytes(b"no library")
    fails(lambda: compiler.load(tmp_path / "garbage"), "XDG_CACHE_HOME")
    said = subprocess.CompletedProcess([], 1, "", "as: kernel.o: No space left on device")
    monkeypatch.setattr(compiler.subprocess, "run", lambda *_, **__: said)
    composed = one_line_kernel("y[0] = x[1];").composed(**text_of(launch(np.zeros(8, np.float32))))
    fails(lambda: compiler.library(composed), "No space left on device", "XDG_CACHE_HOME")


def test_divergence_ends_a_call_with_one_line():
    kernel = one_line_kernel("uint i = thread_position_in_grid.x;\nif (i > 3) y[i] = simd_sum(x[i]);")
    line = fails(lambda: kernel(**launch(np.zeros(32, np.float32))), "simd_sum", "thread 0", "has ended")
    assert "small.source:2" in line
    with pytest.raises(UserError):  # and the next call starts afresh
        kernel(**launch(np.zeros(32, np.float32)))
