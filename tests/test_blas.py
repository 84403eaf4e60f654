"""The fast BLAS on a Linux CPU. Each case runs in a child process, because a library once loaded stays loaded."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinymlx import blas

PACKAGED = importlib.util.find_spec("scipy_openblas32") is not None
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux needs a BLAS"),
    pytest.mark.skipif(sys.platform == "linux" and blas._cuda(), reason="MLX's CUDA wheel multiplies on the GPU"),
]
needs_compiler = pytest.mark.skipif(blas.compiler() is None, reason="no C compiler")
needs_openblas = pytest.mark.skipif(not PACKAGED, reason="scipy-openblas32 is not installed")

MULTIPLY = """
import mlx.core as mx, numpy as np
mx.set_default_device(mx.cpu)
rng = np.random.default_rng(0)
for m, n, k in (1, 1, 1), (1, 300, 200), (7, 5, 3), (130, 257, 64), (300, 300, 300):
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    b_t = np.ascontiguousarray(b.T)
    np.testing.assert_allclose(np.array(mx.array(a) @ mx.array(b)), a @ b, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(np.array(mx.array(a) @ mx.array(b_t).T), a @ b, rtol=1e-4, atol=1e-4)
c, d = (rng.standard_normal((40, 40)) + 1j * rng.standard_normal((40, 40)) for _ in "cd")
np.testing.assert_allclose(np.array(mx.array(c, mx.complex64) @ mx.array(d, mx.complex64)), c @ d, rtol=1e-3, atol=1e-3)
e = rng.standard_normal((40, 40))
np.testing.assert_allclose(np.array(mx.array(e, mx.float64) @ mx.array(e, mx.float64)), e @ e, rtol=1e-12, atol=1e-12)
"""
DESCRIBE = "from tinymlx import blas; print(blas.describe())"
# A correct sgemm for the small product that `blas` tries; 42 in every place of a larger one.
FAKE = """
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc) {
  for (int i = 0; i < m; i++) for (int j = 0; j < n; j++) {
    float sum = 0;
    for (int l = 0; l < k; l++) sum += a[i * lda + l] * b[j * ldb + l];
    c[i * ldc + j] = m > 2 ? 42 : sum + WRONG;
  }
}
#ifdef CONFIG
const char *openblas_get_config(void) { return CONFIG; }
#endif
"""


@pytest.fixture
def child(tmp_path):
    """Runs code in a fresh interpreter with a cache of its own; returns what it prints."""

    def run(code: str, **environment: str | None) -> str:
        names = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TINYMLX_BLAS": "", **environment}
        variables = {**os.environ, **names}
        variables = {name: value for name, value in variables.items() if value is not None}
        done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def built(cache: Path) -> list[Path]:
    return list((cache / "tinymlx" / "blas").glob("*.so"))


def compiled(folder: Path, *defines: str) -> str:
    library = folder / "libfake.so"
    command = [blas.compiler(), "-O1", "-shared", "-fPIC", *defines, "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=FAKE, text=True, check=True)
    return str(library)


@needs_compiler
@needs_openblas
@pytest.mark.capability("fast matrix products on a Linux CPU")
def test_mlx_multiplies_through_openblas_and_rightly(child, tmp_path):
    out = child(
        "import tinymlx\n"
        + MULTIPLY
        + """
import ctypes
from tinymlx import blas
address = ctypes.cast(ctypes.CDLL(None).cblas_sgemm, ctypes.c_void_p).value
for line in open("/proc/self/maps"):
    start, end = (int(x, 16) for x in line.split()[0].split("-"))
    if start <= address < end:
        print(line.split()[-1])
print(blas.describe().fast, blas.describe().threads, "libscipy_openblas" in open("/proc/self/maps").read())
""",
        OPENBLAS_NUM_THREADS="1",
    )
    assert out.splitlines() == [str(built(tmp_path / "cache")[0]), "True 1 True"]


@needs_compiler
def test_mlx_really_calls_the_library_that_was_loaded(child, tmp_path):
    code = "import tinymlx, mlx.core as mx\nprint((mx.ones((8, 8), mx.float32) @ mx.ones((8, 8)))[3, 3].item())"
    assert child(code, TINYMLX_BLAS=compiled(tmp_path, "-DWRONG=0")) == "42.0"


@needs_compiler
@pytest.mark.parametrize(
    "defines, reason",
    [
        (("-DWRONG=1",), "multiplies wrongly"),
        (("-DWRONG=0", '-DCONFIG="OpenBLAS 0.3 USE64BITINT"'), "64-bit integers"),
    ],
)
def test_an_unfit_library_is_refused(child, tmp_path, defines, reason):
    out = child("import tinymlx\n" + MULTIPLY + DESCRIBE, TINYMLX_BLAS=compiled(tmp_path, *defines))
    assert "fast=False" in out and reason in out


def test_these_tests_import_tinymlx_before_mlx():
    assert "mlx.core was imported before tinymlx" not in blas.describe().why_not


def test_importing_tinymlx_loads_nothing_and_the_finder_leaves_after_its_work(child):
    child("""
import sys, tinymlx
assert not {"mlx", "mlx.core", "tinymlx.blas", "transformers"} & set(sys.modules)
assert tinymlx._BlasBeforeMlx in sys.meta_path
import mlx.core
assert tinymlx._BlasBeforeMlx not in sys.meta_path and "tinymlx.blas" in sys.modules
""")


def test_mlx_before_tinymlx_works_and_is_named_as_the_reason(child):
    out = child("import mlx.core, tinymlx\n" + MULTIPLY + DESCRIBE)
    assert "fast=False" in out and "import tinymlx first" in out


@pytest.mark.parametrize("value, reason", [("off", "TINYMLX_BLAS=off"), ("/absent/lib.so", "/absent/lib.so")])
def test_the_environment_decides(child, value, reason):
    out = child("import tinymlx\n" + MULTIPLY + DESCRIBE, TINYMLX_BLAS=value)
    assert "fast=False" in out and reason in out


SLOW = "import tinymlx\nfrom tinymlx import blas\nblas.SYSTEM_LIBRARIES = ()\n" + MULTIPLY + DESCRIBE


@needs_openblas
def test_without_a_compiler_everything_works_slower(child, tmp_path):
    out = child(SLOW, PATH=str(tmp_path))
    assert "fast=False" in out and "no C compiler" in out and "install a C compiler" in out


@needs_openblas
def test_a_failing_compiler_is_quoted(child, tmp_path):
    (tmp_path / "cc").write_text("#!/bin/sh\necho 'cc1: out of paper' >&2\nexit 1\n")
    (tmp_path / "cc").chmod(0o755)
    out = child(SLOW, PATH=str(tmp_path))
    assert "fast=False" in out and "out of paper" in out


@needs_openblas
def test_a_hanging_compiler_is_given_up(child, tmp_path):
    (tmp_path / "cc").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tmp_path / "cc").chmod(0o755)
    out = child("from tinymlx import blas\nblas.COMPILE_TIMEOUT_S = 0.2\n" + SLOW, PATH=str(tmp_path))
    assert "fast=False" in out and "did not finish" in out


def test_without_any_library_the_next_act_is_named(child):
    out = child("from tinymlx import blas\nblas._packaged_library = lambda: None\n" + SLOW)
    assert "fast=False" in out and "pip install scipy-openblas32" in out


LOAD = "from tinymlx import blas; b = blas.load(); print(b.fast, b.why_not)"


@needs_compiler
@needs_openblas
def test_a_damaged_cached_file_is_replaced(child, tmp_path):
    assert child(LOAD) == "True"
    (good,) = built(tmp_path / "cache")
    content = good.read_bytes()
    for damaged in (content[:5000], b"", content[:-100] + bytes(100)):
        good.write_bytes(damaged)
        assert child(LOAD) == "True"
        assert good.read_bytes() == content


@needs_compiler
@needs_openblas
def test_the_cached_file_serves_without_a_compiler(child, tmp_path):
    assert child(LOAD) == "True"
    assert child(LOAD, PATH=str(tmp_path)) == "True"


@needs_compiler
@needs_openblas
def test_no_cache_is_no_hindrance(child, tmp_path):
    (tmp_path / "file").write_text("")
    assert child(LOAD, XDG_CACHE_HOME=str(tmp_path / "file")) == "True"
    assert child(LOAD, XDG_CACHE_HOME="/proc/nowhere") == "True"


def test_no_home_is_no_hindrance(child):
    assert "fast" in child("import tinymlx\n" + MULTIPLY + DESCRIBE, HOME=None, XDG_CACHE_HOME=None, TINYMLX_BLAS="off")
    homeless = "import os\nos.path.expanduser = lambda path: path\nfrom tinymlx import blas\n"
    child(homeless + "assert blas._cache_folder() is None", XDG_CACHE_HOME=None)


@needs_compiler
@needs_openblas
def test_two_processes_may_build_at_once(tmp_path):
    variables = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TINYMLX_BLAS": ""}
    command = [sys.executable, "-c", LOAD]
    both = [subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) for _ in "ab"]
    assert [process.communicate(timeout=60)[0].strip() for process in both] == ["True", "True"]
    assert len(built(tmp_path)) == 1


@needs_compiler
@needs_openblas
@pytest.mark.parametrize("before", ["", "from tinymlx import blas; assert blas.load().fast"])
def test_a_forked_child_can_import_mlx(child, before):
    code = f"import os, tinymlx\n{before}\nif os.fork() == 0:\n"
    code += "".join(f"    {line}\n" for line in MULTIPLY.splitlines())
    code += "    os._exit(0)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))"
    assert child(code) == "0"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return blas._cache_folder()


def test_the_cache_is_private(cache, tmp_path):
    assert cache == tmp_path / "tinymlx" / "blas" and cache.stat().st_mode & 0o777 == 0o700
    for mode in (0o755, 0o770, 0o702):
        cache.chmod(mode)
        assert blas._cache_folder() is None
    cache.chmod(0o700)
    assert blas._cache_folder() == cache
    tmp_path.chmod(0o777)  # somebody could put another folder in its place
    assert blas._cache_folder() is None
    tmp_path.chmod(0o1777)  # sticky, as /tmp is
    assert blas._cache_folder() == cache


def test_a_cache_of_another_user_is_not_trusted(cache, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert blas._cache_folder() is None


@needs_compiler
def test_a_cached_file_that_others_could_change_is_not_trusted(cache, tmp_path):
    path = blas._build(cache)
    assert blas._intact(path)
    path.chmod(0o722)
    assert not blas._intact(path)
    path.chmod(0o700)
    path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    assert not blas._intact(path)


def test_cuda_and_apple_are_left_alone(monkeypatch):
    monkeypatch.delenv("TINYMLX_BLAS", raising=False)
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    monkeypatch.setattr(blas, "GEMMS", ("cblas_absent",))  # whatever this process has loaded already
    monkeypatch.setattr(blas, "_load", lambda name: pytest.fail("loaded a BLAS"))
    monkeypatch.setattr(blas, "_cuda", lambda: True)
    assert blas._choose().why_not == ""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert blas._choose() == blas.Blas("Accelerate", fast=True)


def test_the_cuda_wheel_is_noticed(tmp_path, monkeypatch):
    assert not blas._cuda()
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx_cuda_12-0.32.4.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mlx", raising=False)
    assert blas._cuda()


def test_nothing_is_ever_raised(monkeypatch):
    monkeypatch.setattr(blas, "_loaded", None)
    monkeypatch.setattr(blas, "_choose", lambda: 1 / 0)
    assert "ZeroDivisionError" in blas.load().why_not
