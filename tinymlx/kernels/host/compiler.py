"""Compiles translated kernels with g++ or clang, and keeps what it compiled in the user's cache.

A program of the cache is native code: the folder is private to the user, and the key holds everything that shapes it.
"""

import contextlib
import ctypes
import errno
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from tinymlx.errors import UserError
from tinymlx.kernels.host import compose

HERE = Path(__file__).resolve().parent
MLX_INCLUDE = Path(mx.__file__).resolve().parent / "include"
LONGEST_S = 300  # for one run of the compiler
METAL_HEADERS = (
    "stdlib math simdgroup simdgroup_matrix atomic common integer compute types relational geometric pack".split()
)
COMMON = ["-std=c++20", "-w", "-Wno-attributes", "-fno-exceptions", "-fno-rtti", "-fwrapv", "-fno-strict-aliasing"]
# No contraction: the same bits on every machine. Apple may fuse; neither is wrong.
COMMON += ["-ffp-contract=off", "-fno-math-errno"]
FAST = ["-O2", "-fPIC", "-shared"]
# -O1: a line for every access, and none merged; a loop that leaves its array must not be assumed away.
# -gdwarf-4: addr2line of binutils 2.40 takes a kernel in the first file of a DWARF 5 table for kernel.cpp
CHECK = ["-O1", "-g1", "-gdwarf-4", "-fno-pie", "-DHOST_CHECK", "-fno-omit-frame-pointer"]
# Answered by shadow.cpp; a large frame touches every page of the stack, so that it cannot jump over the guard.
HOOKS = ["-fstack-clash-protection", "-fsanitize=thread", "-fsanitize=shift-exponent,integer-divide-by-zero,alignment"]
GCC_CHECK = [*HOOKS, "-fno-aggressive-loop-optimizations"]
CLANG_CHECK = [*HOOKS, "-mllvm", "-tsan-instrument-read-before-write=1"]  # else the read in `o[i] += x` is lost


class CompileError(UserError):
    """The kernel does not compile. `file` and `line` are the kernel's own."""

    def __init__(self, message: str, file: str = "", line: int = 0):
        place = f"{file}:{line}: " if file else ""
        super().__init__(f"{place}{message}")
        self.file, self.line, self.reason = file, line, message


@dataclass(frozen=True)
class Compiler:
    command: tuple[str, ...]
    version: str
    target: tuple[str, ...] = ()  # flags that fit the machine it compiles for
    runner: tuple[str, ...] = ()  # what starts a program made for another CPU

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version


@functools.cache
def native() -> Compiler:
    """$CXX, which may hold options too, or else the first of g++ and clang++ found. Raises UserError when there is none."""
    tune = ("-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native",)
    if chosen := os.environ.get("CXX", "").strip():
        command = (chosen,) if shutil.which(chosen) else tuple(chosen.split())
        if not shutil.which(command[0]):
            raise UserError(f"CXX={chosen}: there is no such program; set CXX to g++ or clang++, or unset it")
        if not _compiles(command):
            raise UserError(f"CXX={chosen} is no compiler of C++20; set CXX to a newer g++ or clang++, or unset it")
        return Compiler(command, _version(command), tune)
    for name in ("g++", "clang++", "c++"):
        if shutil.which(name):
            return Compiler((name,), _version((name,)), tune)
    raise UserError("no C++ compiler to check kernels with; install g++ (Debian: apt install g++) or set CXX")


def _compiles(command: tuple[str, ...]) -> bool:
    """Whether it answers as g++ and clang++ do: any program may stand in $CXX."""
    asked = [*command, "-x", "c++", "-std=c++20", "-dM", "-E", os.devnull]
    try:
        done = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and b"#define __cplusplus" in done.stdout


def _version(command: tuple[str, ...]) -> str:
    return subprocess.run([*command, "--version"], capture_output=True, text=True).stdout


@functools.cache
def cpu_features() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
    except OSError:
        return platform.processor() + platform.version()


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base).absolute() / "tinymlx" / "host"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.stat().st_uid == os.getuid():
            folder.chmod(0o700)
            return folder
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; set XDG_CACHE_HOME to a folder that you can write") from None
    raise UserError(f"{folder} belongs to somebody else; set XDG_CACHE_HOME to a folder of your own")


@functools.cache
def _shim() -> str:
    """All of ours that shapes what is compiled, for the key."""
    files = sorted(p for p in HERE.rglob("*") if p.suffix in (".h", ".cpp") or p.name in ("compose.py", "compiler.py"))
    return "\n".join(p.read_text() for p in files)


def _key(*parts) -> str:
    text = "\0".join(map(str, (*parts, _shim(), cpu_features(), mx.__version__, MLX_INCLUDE)))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def library(composed: compose.Composed, compiler: Compiler | None = None) -> Path:
    """A shared library with the kernel alone, for running: calls go to `runtime()`."""
    compiler = compiler or native()
    flags = [*COMMON, *compiler.target, *FAST]
    return _cached(_key(composed, compiler, flags), ".so", lambda folder: _compile(composed, compiler, flags, folder))


def runtime() -> Path:
    """The shared library that runs kernels in this process."""
    compiler = native()
    flags = [*COMMON, *compiler.target, *FAST]
    return _cached(
        _key("runtime", compiler, flags), ".so", lambda folder: _build([HERE / "runtime.cpp"], compiler, flags, folder)
    )


def plain_library(folder: Path, flags: tuple[str, ...], before: Callable[[], None]) -> Path:
    """A shared library of the C++ in `folder`: no kernel, no shim. before: called if it has to be built."""
    compiler = native()
    flags = ("-std=c++20", "-Wall", "-fPIC", "-shared", *compiler.target, *flags)
    files = sorted(file for file in folder.iterdir() if file.suffix in (".cpp", ".h"))
    texts = [file.read_text() for file in files]

    def build(temporary: Path) -> Path:
        before()
        return _build([file for file in files if file.suffix == ".cpp"], compiler, flags, temporary)

    return _cached(_key(*texts, compiler, flags), ".so", build)


def program(composed: compose.Composed, compiler: Compiler | None = None) -> Path:
    """A program that checks the kernel (shadow.cpp)."""
    compiler = compiler or native()
    hooks = CLANG_CHECK if compiler.is_clang else GCC_CHECK
    flags = [*COMMON, *compiler.target, *CHECK]
    link = ["-no-pie", *(["-static"] if compiler.runner else [])]

    def shadow(folder: Path) -> Path:
        plain = [*COMMON, *compiler.target, "-O2", "-fno-pie"]
        return _build([HERE / "shadow.cpp"], compiler, [*plain, "-c"], folder)

    def build(folder: Path) -> Path:
        checker = _cached(_key("shadow", compiler, COMMON), ".o", shadow)
        made = _compile(composed, compiler, [*flags, *hooks, "-c"], folder)
        return _build([made, checker], compiler, link, folder)

    return _cached(_key(composed, compiler, flags, hooks, link), "", build)


def prune(folder: Path, days: int = 30) -> None:
    """Forgets what has not been used for so long. Another process may do the same meanwhile."""
    oldest = time.time() - days * 86400
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.is_file() and path.stat().st_mtime < oldest:
                path.unlink()


def _cached(key: str, suffix: str, build: Callable[[Path], Path]) -> Path:
    """Built in a folder of its own and moved in place, so that a second process never sees half of it."""
    folder = cache_folder()
    path = folder / f"{key}{suffix}"
    if not _is_whole(path):
        try:
            prune(folder)
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                made = build(Path(temporary))
                digest = hashlib.sha256(made.read_bytes()).digest()
                with made.open("ab") as file:
                    file.write(digest)
                os.replace(made, path)
        except OSError as error:
            raise unusable(path, error) from None
    return path


def _is_whole(path: Path) -> bool:
    """Whether the file ends in the checksum of the rest. To load half a library would end this process."""
    try:
        os.utime(path)  # used: `prune` spares it
        made = path.read_bytes()
    except OSError:
        return False
    return made[-32:] == hashlib.sha256(made[:-32]).digest()


def unusable(path: Path, error: OSError) -> UserError:
    """For a file of the cache that cannot be written, loaded or started: no space left, or mounted noexec."""
    reason = error.strerror or " ".join(str(error).split())
    return UserError(f"{path}: {reason}; set XDG_CACHE_HOME to a folder with space, from which programs may run")


def load(path: Path, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path), mode=mode)
    except OSError as error:
        raise unusable(path, error) from None


def _compile(composed: compose.Composed, compiler: Compiler, flags: list[str], folder: Path) -> Path:
    for name in METAL_HEADERS:
        (folder / f"metal_{name}").write_text('#include "metal.h"\n')
    source = folder / "kernel.cpp"
    preamble = '#include "metal.h"\n#include "mlx/backend/metal/kernels/utils.h"\n'
    source.write_text(f"{preamble}{composed.text}\n{compose.entry(composed)}")
    include = [f"-I{folder}", f"-I{HERE}", f"-I{HERE / 'mlx_headers'}", f"-I{MLX_INCLUDE}"]
    metal = ["-E", "-D__METAL__", "-DMLX_METAL_JIT", *include]
    definitions = [flag for flag in flags if flag.startswith(("-std", "-D", "-march", "-mcpu"))]
    preprocessed = _run([*compiler.command, *metal, *definitions, str(source)], folder)
    translated = folder / "kernel.ii"
    translated.write_text(compose.translate(preprocessed))
    return _build([translated], compiler, [*flags, "-fpreprocessed"] if not compiler.is_clang else flags, folder)


def _build(sources: list[Path], compiler: Compiler, flags: list[str], folder: Path) -> Path:
    target = folder / f"{sources[0].stem}.{len(sources)}.out"
    place = f"-ffile-prefix-map={folder}=."
    # A map of the working folder shortens debug names to those of the #line marks.
    _run([*compiler.command, *flags, place, f"-I{HERE}", *map(str, sources), "-o", str(target)], folder)
    return target


def _run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "LC_ALL": "C"}  # `error:` in English
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        raise CompileError(f"the compiler took more than {LONGEST_S} s; make the kernel smaller") from None
    if "No space left on device" in done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if done.returncode:
        raise first_error(done.stderr)
    return done.stdout


def is_ours(file: str) -> bool:
    return Path(file).name in ("metal.h", "runtime.h", "strict.h", "shadow.cpp", "runtime.cpp")


def first_error(output: str) -> CompileError:
    """The compiler's first error, at the kernel's own line even when it arose inside metal.h."""
    lines = output.splitlines()
    errors = [(i, re.match(r"(.*?):(\d+):(?:\d+:)? (?:fatal )?error: (.*)", line)) for i, line in enumerate(lines)]
    errors = [(i, found) for i, found in errors if found]
    if not errors:
        said = lines[-1] if lines else "no message"
        return CompileError(f"the compiler failed: {said}; set CXX to another g++ or clang++, or report this kernel")
    index, found = errors[0]
    file, line = found[1], int(found[2])
    if is_ours(file):  # the chain of instantiations before it, or the callers after it, lead to the kernel
        for other in [*lines[:index][::-1], *lines[index + 1 :]]:
            place = re.match(r"(?:In file included from )?([^:\s][^:]*):(\d+):(?:\d+:)?", other)
            if place and not is_ours(place[1]):
                file, line = place[1], int(place[2])
                break
    if is_ours(file):  # a compiler that is too old, or not for this machine
        return CompileError(f"{file}:{line}: {plain(found[3])}; set CXX to a newer g++ or clang++ of this machine")
    return CompileError(plain(found[3]), short(file), line)


def plain(message: str) -> str:
    """Names as the kernel writes them."""
    return " ".join(message.replace("metal::", "").replace("host_type_", "").split())


def short(file: str) -> str:
    """'./softmax.metal' -> 'softmax.metal'; a header of MLX from `mlx/` on."""
    file = re.sub(r"^(\./)+", "", file)
    return file[file.index("/include/mlx/") + len("/include/") :] if "/include/mlx/" in file else file
