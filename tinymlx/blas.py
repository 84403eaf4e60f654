"""A fast BLAS for MLX on a Linux CPU, loaded before MLX.

The Linux CPU wheel of MLX brings a reference BLAS: plain loops, one thread. The dynamic linker looks a symbol up in
globally loaded libraries first, so an OpenBLAS that is loaded before `mlx.core`, with `RTLD_GLOBAL`, answers MLX's
calls of `cblas_sgemm` instead (1024 x 1024 float32 on two cores: 72 instead of 3 GFLOP/s).

PyPI's OpenBLAS (`scipy-openblas32`, part of the extra `cpu`) calls the function `scipy_cblas_sgemm`, to keep out of
everybody's way. A forwarder of a few lines of C gives it the name MLX asks for. It is compiled once, with the machine's
own compiler, into a folder that only this user can write. Without a compiler, a system-wide OpenBLAS serves; without
that, MLX's own.

`TINYMLX_BLAS=off` leaves MLX alone, `TINYMLX_BLAS=/path/to/lib.so` names another library. OpenBLAS takes the number of
threads from OPENBLAS_NUM_THREADS. Nothing here ever raises: at worst MLX is slow, and `describe` says why.
"""

import ctypes
import hashlib
import importlib.util
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

# The functions of CBLAS that libmlx.so asks for. Its few LAPACK functions stay where they are.
GEMMS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")

# Python fills in the pointers before MLX is loaded, so the compiled file depends on no library and can be kept.
FORWARDER = """
#define FORWARD(NAME, SCALAR, ELEMENT)                                                                          \\
  void (*tinymlx_##NAME)(int, int, int, int, int, int, SCALAR, const ELEMENT *, int, const ELEMENT *, int,      \\
                         SCALAR, ELEMENT *, int);                                                               \\
  void NAME(int order, int ta, int tb, int m, int n, int k, SCALAR alpha, const ELEMENT *a, int lda,            \\
            const ELEMENT *b, int ldb, SCALAR beta, ELEMENT *c, int ldc) {                                      \\
    tinymlx_##NAME(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);                                \\
  }
FORWARD(cblas_sgemm, float, float)
FORWARD(cblas_dgemm, double, double)
FORWARD(cblas_cgemm, const void *, void)
"""
COMPILE = ("-O2", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-")  # -nostdlib: a compiler without libc-dev will do
COMPILE_TIMEOUT_S = 20

SYSTEM_OPENBLAS = "a system-wide OpenBLAS (Debian: apt install libopenblas0-pthread)"
SYSTEM_LIBRARIES = ("libopenblasp.so.0", "libopenblas.so.0")  # Fedora's threaded build; Debian's and everybody's


@dataclass(frozen=True)
class Blas:
    """What multiplies matrices for MLX on the CPU of this process."""

    name: str
    fast: bool
    library: str | None = None
    threads: int | None = None
    why_not: str = ""
    """Why it is not a fast one; empty when it is, or when it does not matter."""
    next_act: str = ""
    """What the user can do about it."""


class Unfit(Exception):
    """This library, or this way to load it, will not do. The message says why."""


_loaded: Blas | None = None


def load() -> Blas:
    """Loads a fast BLAS if this machine has one and MLX is not loaded yet. Once a process; never raises."""
    global _loaded
    if _loaded is None:
        try:
            _loaded = _choose()
        except Exception as error:  # whatever is odd about this machine: `import mlx.core` must go on
            _loaded = _slow(f"{type(error).__name__}: {error}", "report this line")
    return _loaded


def describe() -> Blas:
    """What `load` found; for `tinymlx doctor`."""
    return load()


def compiler() -> str | None:
    """The path of the machine's C compiler."""
    import shutil  # this and the imports below: every start would pay for what only a build needs

    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def _slow(why_not: str, next_act: str) -> Blas:
    return Blas("MLX's own reference BLAS", fast=False, why_not=why_not, next_act=next_act)


def _choose() -> Blas:
    wanted = os.environ.get("TINYMLX_BLAS", "")
    if sys.platform == "darwin":
        return Blas("Accelerate", fast=True)
    if sys.platform != "linux":
        return _slow(f"tinymlx knows no other on {sys.platform}", "use Linux or macOS")
    if wanted == "off":
        return _slow("TINYMLX_BLAS=off", "unset TINYMLX_BLAS")
    if hasattr(ctypes.CDLL(None), GEMMS[0]):
        return Blas("a BLAS that was loaded before tinymlx", fast=True)
    if "mlx.core" in sys.modules:
        return _slow("mlx.core was imported before tinymlx", "import tinymlx first")
    if wanted:
        try:
            return _load(wanted)
        except (OSError, Unfit) as error:
            return _slow(f"TINYMLX_BLAS: {error}", "correct or unset TINYMLX_BLAS")
    if _cuda():
        return Blas("MLX's own reference BLAS", fast=False)  # the GPU multiplies; nothing to mend
    return _first_that_loads()


def _first_that_loads() -> Blas:
    reasons = []
    packaged = _packaged_library()
    for library in (packaged, *SYSTEM_LIBRARIES):
        if library is None:
            reasons.append("scipy-openblas32 is not installed")
            continue
        try:
            return _load(library)
        except Unfit as error:
            reasons.append(str(error))
        except OSError as error:
            if library not in SYSTEM_LIBRARIES:  # their absence is no news
                reasons.append(str(error))
    if packaged is None:
        act = "pip install scipy-openblas32"
    elif compiler() is None:
        act = f"install a C compiler (gcc or clang), or {SYSTEM_OPENBLAS}"
    else:
        act = f"install {SYSTEM_OPENBLAS}"
    return _slow("; ".join(reasons), act)


def _cuda() -> bool:
    """Whether MLX's CUDA wheel is installed."""
    spec = importlib.util.find_spec("mlx")
    folders = spec.submodule_search_locations if spec else ()
    # `importlib.metadata` would say so too, but takes longer to import than MLX.
    return any(list(Path(folder).parent.glob("mlx_cuda_*.dist-info")) for folder in folders)


def _packaged_library() -> str | None:
    spec = importlib.util.find_spec("scipy_openblas32")
    for folder in spec.submodule_search_locations if spec else ():
        for library in sorted(Path(folder, "lib").glob("libscipy_openblas*.so")):
            return str(library)
    return None


def _load(name: str) -> Blas:
    """Makes the library at `name` answer for `cblas_sgemm`, or raises OSError or Unfit and has changed nothing."""
    library = ctypes.CDLL(name)  # local, so that nothing sees it before it has been checked
    prefix = next((p for p in ("", "scipy_") if hasattr(library, p + GEMMS[0])), None)
    if prefix is None:
        raise Unfit(f"{name} has no {GEMMS[0]}")
    config = _text(library, f"{prefix}openblas_get_config")
    if "USE64BITINT" in config:
        raise Unfit(f"{name} takes 64-bit integers, MLX passes 32-bit ones")
    if prefix:
        _load_forwarder({gemm: _address(library, prefix + gemm) for gemm in GEMMS})
    else:
        _check(library.cblas_sgemm, name)
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    threads = getattr(library, f"{prefix}openblas_get_num_threads", lambda: None)()
    title = " ".join(config.split()[:2] + [_text(library, f"{prefix}openblas_get_corename")]).strip()
    return Blas(title or Path(name).name, fast=True, library=name, threads=threads)


def _text(library: ctypes.CDLL, function: str) -> str:
    if not hasattr(library, function):
        return ""
    getattr(library, function).restype = ctypes.c_char_p
    return (getattr(library, function)() or b"").decode(errors="replace")


def _address(library: ctypes.CDLL, function: str) -> int:
    if not hasattr(library, function):
        raise Unfit(f"{library._name} has no {function}")
    return ctypes.cast(getattr(library, function), ctypes.c_void_p).value


def _check(sgemm, name: str) -> None:
    """[[1, 2, 3], [4, 5, 6]] @ [[1, 3, 5], [2, 4, 6]].T, in row-major order, must be [[22, 28], [49, 64]]."""
    floats = ctypes.c_float * 6
    a, b, c = floats(1, 2, 3, 4, 5, 6), floats(1, 3, 5, 2, 4, 6), floats()
    row_major, plain, transposed, one, zero = 101, 111, 112, ctypes.c_float(1), ctypes.c_float(0)
    sgemm(row_major, plain, transposed, 2, 2, 3, one, a, 3, b, 3, zero, c, 2)
    if list(c[:4]) != [22, 28, 49, 64]:
        raise Unfit(f"{name} multiplies wrongly")


def _load_forwarder(targets: dict[str, int]) -> None:
    """Loads the forwarder, from the cache; else built into it; else built for this process. Points it at `targets`."""
    reasons = []
    cache = _cache_folder()
    if cache is not None:
        for path in sorted(cache.glob(f"{_key()}-*.so")):
            if _intact(path):
                try:
                    return _bind(path, targets)
                except (OSError, Unfit) as error:
                    reasons.append(str(error))
        try:
            return _bind(_build(cache), targets)
        except (OSError, Unfit) as error:
            reasons.append(str(error))
    if compiler() is None:
        raise Unfit("no C compiler (cc, gcc, clang) for the forwarder to scipy-openblas32")
    import tempfile

    with tempfile.TemporaryDirectory(prefix="tinymlx-blas-") as folder:
        if not _private(Path(folder)):
            raise Unfit(f"others can write to {folder}")
        try:
            return _bind(_build(Path(folder)), targets)  # stays loaded when its file is gone
        except (OSError, Unfit) as error:
            raise Unfit("; ".join(dict.fromkeys([*reasons, str(error)])))


def _bind(path: Path, targets: dict[str, int]) -> None:
    forwarder = ctypes.CDLL(str(path))
    for gemm, address in targets.items():
        ctypes.c_void_p.in_dll(forwarder, f"tinymlx_{gemm}").value = address
    _check(forwarder.cblas_sgemm, "the forwarder to scipy-openblas32")
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _key() -> str:
    content = "\n".join((FORWARDER, *COMPILE, os.uname().machine))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _intact(path: Path) -> bool:
    """Whether the file is ours, and what its name says: a truncated library would kill the process, not raise."""
    try:
        state = path.lstat()
        ours = stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o022
        return ours and path.stem == f"{_key()}-{_digest(path)}"
    except OSError:
        return False


def _build(folder: Path) -> Path:
    """Compiles the forwarder to `<key>-<digest of the file>.so` in `folder`, which is private."""
    cc = compiler()
    if cc is None:
        raise Unfit("no C compiler (cc, gcc, clang) for the forwarder to scipy-openblas32")
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(dir=folder) as scratch:  # a rename is atomic only within a file system
        output = Path(scratch, "forward.so")
        try:
            done = subprocess.run(
                [cc, *COMPILE, "-o", str(output)],
                input=FORWARDER,
                text=True,
                errors="replace",
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=COMPILE_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise Unfit(f"{cc} did not finish within {COMPILE_TIMEOUT_S} s")
        if done.returncode != 0 or not output.is_file():
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise Unfit(f"{cc} failed: {lines[0]}")
        output.chmod(0o700)
        final = folder / f"{_key()}-{_digest(output)}.so"
        output.replace(final)
    return final


def _cache_folder() -> Path | None:
    """The folder that keeps the forwarder, made if need be; None if there is none that only this user can write."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: ignore a relative one
        base = os.path.expanduser("~/.cache")
    if not os.path.isabs(base):  # no home
        return None
    folder = Path(base, "tinymlx", "blas")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        folder = folder.resolve(strict=True)
        return folder if _private(folder) else None
    except OSError:
        return None


def _private(folder: Path) -> bool:
    """Whether `folder` is this user's alone, and nobody else can put another in its place."""
    own = folder.lstat()
    if own.st_uid != os.geteuid() or own.st_mode & 0o077:
        return False
    for parent in folder.resolve().parents:
        state = parent.stat()
        replaceable = state.st_mode & 0o022 and not state.st_mode & stat.S_ISVTX
        if state.st_uid not in (0, os.geteuid()) or replaceable:
            return False
    return True
