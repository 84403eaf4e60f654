"""A .metal file of somebody's own, watched on this CPU: `tinymlx kernels check my.metal`. It runs as native code: check only files you trust.

How it is launched stands in lines of the file itself, or is given as `Settings`:

    // check: grid=1024 threadgroup=256 input x=float32:4x1000 input n=1000 output y=float32:4x1000 twin=softmax.py:softmax

    kernel=NAME             which kernel function, if there are several; a template with its arguments: kernel=softmax<float,4>
    call LINE               for function templates alone: a line of the body that mx.fast.metal_kernel would be given
    grid=X,Y,Z              threads, not threadgroups; Y and Z are 1 if left out
    threadgroup=X,Y,Z       threads
    input NAME=...          DTYPE:SHAPE drawn at random, DTYPE:SHAPE:NUMBER, DTYPE:SHAPE:LOW..HIGH, a NUMBER alone, or FILE.npy
    output NAME=...         DTYPE:SHAPE, or DTYPE:SHAPE:0 where the kernel adds to what is there
    twin=FILE.py:FUNCTION   gets the inputs in their order, as mx.arrays, and returns what the outputs must be; it has 30 s
    tolerance=NUMBER        of an error, relative to the largest magnitude of the output or to 1

Files that the lines name, and those that `#include "..."` names, lie beside the .metal file.
"""

import contextlib
import importlib.util
import re
import shlex
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from tinymlx.errors import UserError
from tinymlx.kernels import metal
from tinymlx.kernels.host import Finding, Kernel, Place, Report, checker, compose, strict

Settings = dict[str, list[str]]
"""What stands behind each of `NAMES`, without `NAME=` in front of a value that has none."""

REPEATED = ("call", "input", "output")
NAMES = ("kernel", "grid", "threadgroup", "twin", "tolerance", *REPEATED)
DTYPES = {name: getattr(mx, name) for name in ("float32", "float16", "bfloat16")}
DTYPES |= {f"{sign}int{bits}": getattr(mx, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)}
DTYPES |= {"bool": mx.bool_}
TOLERANCES = {mx.float32: 1e-5, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}  # others are whole numbers
IN_METAL = {"float": "float32", "half": "float16", "bfloat": "bfloat16", "bool": "bool", "char": "int8", "uchar": "uint8", "short": "int16",
            "ushort": "uint16", "int": "int32", "uint": "uint32", "long": "int64", "ulong": "uint64"}  # fmt: skip
MOST_TEXT, MOST_BYTES, MOST_THREADS = 1 << 20, 1 << 30, 1 << 24
TWIN_S = 30  # as a kernel has for each schedule


Arrays = dict[str, mx.array]


class Error(NamedTuple):
    """Of an output beside its twin: the largest error, the largest magnitude, and what error is allowed."""

    error: float
    magnitude: float
    allowed: float


class Checked(NamedTuple):
    """arrays: inputs, and outputs as they begin. not_strict: why nobody looked for what only Metal forbids; None where that was done."""

    arrays: Arrays
    report: Report
    errors: dict[str, Error]
    not_strict: str | None


def check_file(path: Path, given: Settings, seed: int = 0) -> Checked:
    """Check a file, launched as it says but for what is `given`. Raises UserError where the two together make no launch."""
    text, file = _read(path), re.sub(r"[^\w.+ -]", "_", path.name)
    said = _said(text, path)
    settings = said | given
    named = {kind: _named(kind, said) | _named(kind, given) for kind in ("input", "output")}
    for name in ("grid", "threadgroup", "output"):
        if not settings.get(name):
            raise UserError(f"{path} does not say its {name}; give --{name}, or write it into a line `// check: ...`")
    if both := named["input"].keys() & named["output"].keys():
        raise UserError(f"{min(both)} is an input and an output; make it one of them")
    launch = {name: _sizes(name, settings[name][0]) for name in ("grid", "threadgroup")}
    checker.check_launch(file, **launch)
    if (threads := int(np.prod(launch["grid"], dtype=object))) > MOST_THREADS:
        raise UserError(f"grid has {threads:,} threads; check at most {MOST_THREADS:,}, at smaller shapes")
    if "kernel" in settings and "call" in settings:
        raise UserError(
            f"{path}: kernel names a function that is run whole, call a line that uses one; give one of them"
        )
    tolerance = _tolerance(settings["tolerance"][0]) if "tolerance" in settings else None
    text, whole = _with_includes(text, path), None
    if "call" not in settings:
        whole = _whole(text, settings.get("kernel", [None])[0], file)
    declared, rng = {p.name: p.type for p in whole.buffers} if whole else {}, np.random.default_rng(seed)
    inputs = {name: _input(name, value, declared.get(name), rng) for name, value in named["input"].items()}
    outputs = {name: _output(name, value) for name, value in named["output"].items()}
    if sum(a.nbytes for a in (*inputs.values(), *outputs.values())) > MOST_BYTES:
        raise UserError("the buffers take more than 1 GiB; check the kernel at smaller shapes")
    if whole:
        _fit(whole, inputs | outputs, file)
    wanted = _twin(settings["twin"][0], inputs, outputs) if "twin" in settings else []

    launch["adds"] = any(value.count(":") == 2 for value in named["output"].values())
    if whole:
        report, got = _watch_whole(whole, inputs, outputs, **launch)
    else:
        whole, report, got = _watch_call(text, "\n".join(settings["call"]), file, inputs, outputs, **launch)
    not_strict = _look_strictly(whole, report)
    errors = {name: _compare(name, got[name], want, tolerance, report) for name, want in zip(outputs, wanted) if got}
    return Checked(inputs | outputs, report, errors, not_strict)


def files_of(path: Path, given: Settings) -> list[Path]:
    """The files that a check reads: the kernel, what it includes, arrays and twins, also where an option overrides them."""
    text = _read(path)
    both = [*_said(text, path).items(), *given.items()]
    named = [value.partition("=")[2] for name, values in both if name == "input" for value in values]
    named += [value.rpartition(":")[0] for name, values in both if name == "twin" for value in values]
    return [path, *map(Path, filter(None, named)), *(path.parent / Path(name).name for name in _beside(text, path))]


def _watch_whole(
    whole: compose.Composed, inputs: Arrays, outputs: Arrays, adds: bool, **launch
) -> tuple[Report, Arrays]:
    """adds: whether what outputs hold counts as written. Returns the outputs by name too; none, where the kernel did not come to its end."""
    buffers = {p.name: (inputs | outputs)[p.name] for p in whole.buffers}
    mx.eval(buffers)
    report = checker.check(whole, buffers, set(outputs), **launch, initialised=adds)
    return report, dict(zip([name for name in buffers if name in outputs], report.outputs))


def _watch_call(
    text: str, call: str, file: str, inputs: Arrays, outputs: Arrays, adds: bool, **launch
) -> tuple[compose.Composed, Report, Arrays]:
    """As MLX would compose it around `call`."""
    kernel = Kernel(
        name=re.sub(r"\W", "_", file.removesuffix(".metal")),
        input_names=list(inputs),
        output_names=list(outputs),
        header=text,
        source=call,
        file=file,
        atomic_outputs=bool(re.search(r"\bdevice\s+atomic", text)),
    )
    shapes, dtypes = [y.shape for y in outputs.values()], [y.dtype for y in outputs.values()]
    form = {"inputs": list(inputs.values()), "output_shapes": shapes, "output_dtypes": dtypes}
    report = kernel.check(**form, **launch, init_value=0 if adds else None)
    return kernel.composed(**form), report, dict(zip(outputs, report.outputs))


# What is asked for ----------------------------------------------------------------------------------------------------


def _read(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a file; name a .metal file")
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_TEXT + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(raw) > MOST_TEXT:
        raise UserError(f"{path} is larger than 1 MiB; name a file with one kernel")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or not text.strip():
        raise UserError(f"{path} is {'not text' if text.strip() else 'empty'}; name a .metal file")
    return text


def _said(text: str, path: Path) -> Settings:
    """Of the lines `// check: ...`."""
    said: Settings = {}
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r"\s*//\s*check:\s*(.*)", line)
        if not found:
            continue
        try:
            words = ["call", found[1][5:]] if found[1].startswith("call ") else shlex.split(found[1])
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}; mend the line") from None
        while words:
            word = words.pop(0)
            name, _, value = (word, "", words.pop(0)) if word in REPEATED and words else word.partition("=")
            if name not in NAMES or not value:
                raise UserError(f"{path}:{number}: {word!r} is not one of {', '.join(NAMES)} with what it is")
            if name == "twin" or name == "input" and value.endswith(".npy"):
                buffer, equals, beside = value.rpartition("=")
                value = f"{buffer}{equals}{path.parent / beside}"
            said.setdefault(name, []).append(value)
    return said


def _named(kind: str, settings: Settings) -> dict[str, str]:
    """["x=float32:8", "n=8"] -> {"x": "float32:8", "n": "8"}"""
    found: dict[str, str] = {}
    for value in settings.get(kind, []):
        name, equals, what = value.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"{kind} {value!r} is not NAME=DTYPE:SHAPE, as in x=float32:4x1000")
        if name in found:
            raise UserError(f"{kind} {name} is given twice; give it once")
        found[name] = what
    return found


def _sizes(name: str, value: str) -> tuple[int, int, int]:
    sizes = value.split(",")
    if len(sizes) > 3 or not all(s.strip().isdecimal() and 0 < int(s) < 1 << 31 for s in sizes):
        raise UserError(f"{name} {value!r} is not one to three numbers of threads, as in 1024 or 32,8,1")
    return (*map(int, sizes), 1, 1)[:3]


def _tolerance(value: str) -> float:
    tolerance = float(_number("tolerance", value))
    if not 0 <= tolerance < np.inf:
        raise UserError(f"tolerance {value} is not a number from 0 on; give one like 1e-5")
    return tolerance


def _with_includes(text: str, path: Path) -> str:
    """With what it includes, from beside it or from metal_kernels/include, in its place."""
    files = {path.with_suffix(".metal").name: text, **_beside(text, path)}
    try:
        with metal.overlaid(files):
            return metal.source(path.stem)
    except FileNotFoundError as error:
        raise UserError(f"{path} includes {Path(error.filename).name}, which is not beside it; put it there") from None


def _beside(text: str, path: Path) -> dict[str, str]:
    """{"include/NAME": its text} of what the text includes and what that includes, where it lies beside the file."""
    files: dict[str, str] = {}
    todo = [text]
    while todo:
        for name in re.findall(r'^#include "([\w.]+)"$', todo.pop(), re.MULTILINE):
            if f"include/{name}" not in files and (path.parent / name).is_file():
                files[f"include/{name}"] = _read(path.parent / name)
                todo.append(files[f"include/{name}"])
    return files


def _whole(text: str, function: str | None, file: str) -> compose.Composed:
    if not re.search(r"\bkernel\b", compose.blank(text)):
        raise UserError(
            f"{file} has no kernel function; say how its template is called, as in `// check: call twice<float>(x, y, i);`"
        )
    try:
        return compose.parse(f'#line 1 "{file}"\n{text}', function)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def _fit(composed: compose.Composed, arrays: Arrays, file: str) -> None:
    """Raises UserError unless each buffer has an array of its type, and each array a buffer."""
    kinds = {p.name: p.type for p in composed.buffers}
    for name in arrays:
        if name not in kinds:
            raise UserError(f"{file}: the kernel has no buffer {name}, but {', '.join(kinds) or 'none'}")
    for name, kind in kinds.items():
        if name not in arrays:
            raise UserError(f"{file}: nothing is given for {kind} {name}; add --input {name}=... or --output")
        dtype = _declared(kind)
        if dtype is not None and dtype != arrays[name].dtype:
            raise UserError(
                f"{name} is given as {_word(arrays[name].dtype)}, but the kernel takes {kind}: {_word(dtype)}"
            )


def _declared(kind: str) -> mx.Dtype | None:
    """'const device half4*' -> mx.float16; None for a type that is not built in."""
    found = re.fullmatch(
        r"(\w+?)(?:_t)?([234]?)", re.sub(r"\b(const|constant|device|volatile|metal::)\b|[*&\s]", "", kind)
    )
    name = found and IN_METAL.get(found[1], found[1])
    return DTYPES.get(name)


def _word(dtype: mx.Dtype) -> str:
    return str(dtype).rpartition(".")[2].removesuffix("_")


# Buffers --------------------------------------------------------------------------------------------------------------


def _output(name: str, value: str) -> mx.array:
    shape, dtype, fill = _described(name, value)
    if fill not in (None, "0"):
        raise UserError(f"output {name} begins as {fill}; begin with 0, or with nothing")
    return mx.zeros(shape, dtype)


def _input(name: str, value: str, declared: str | None, rng: np.random.Generator) -> mx.array:
    if value.endswith(".npy"):
        try:
            held = np.load(value, allow_pickle=False)
            if held.dtype.kind not in "fiub":
                raise TypeError(f"it holds {held.dtype}; save numbers that are not complex")
            return mx.array(held.astype(held.dtype.newbyteorder("="), order="C"))
        except (OSError, ValueError, TypeError, EOFError, RuntimeError, MemoryError) as error:
            raise UserError(f"input {name}: {value} cannot be read: {' '.join(str(error).split())}") from None
    if ":" not in value:
        number, dtype = _number(name, value), declared and _declared(declared)
        return _filled(name, (), dtype or (mx.int32 if isinstance(number, int) else mx.float32), number)
    shape, dtype, fill = _described(name, value)
    whole = dtype not in TOLERANCES
    if fill is None and not whole:
        return mx.array(rng.standard_normal(shape, np.float32)).astype(dtype)
    if fill is not None and ".." not in fill:
        return _filled(name, shape, dtype, _number(name, fill))
    if fill is None:
        fill = "0..1" if dtype == mx.bool_ else "0..9"
    low, high = (_number(name, end) for end in fill.split("..", 1))
    if not low <= high:
        raise UserError(f"input {name}: {fill} has no numbers in it; write the smaller one first")
    if max(abs(low), abs(high)) > float(np.finfo(np.float32).max):
        raise UserError(f"input {name}: {fill} reaches beyond float32; write two finite numbers that it holds")
    if whole and isinstance(low, int) and isinstance(high, int):
        _filled(name, (), dtype, low), _filled(name, (), dtype, high)
        return mx.array(rng.integers(low, high, shape, np.uint64 if low >= 0 else np.int64, endpoint=True)).astype(
            dtype
        )
    return mx.array(rng.uniform(low, high, shape).astype(np.float32)).astype(dtype)


def _described(name: str, value: str) -> tuple[tuple[int, ...], mx.Dtype, str | None]:
    """'float32:4x1000:0' -> ((4, 1000), mx.float32, "0")"""
    kind, _, rest = value.partition(":")
    sizes, colon, fill = rest.partition(":")
    if kind not in DTYPES:
        raise UserError(f"{name}: there is no dtype {kind!r}; there are {', '.join(DTYPES)}")
    shape = sizes.split("x") if sizes else []
    if not all(size.isdecimal() and 0 < int(size) <= MOST_BYTES for size in shape):
        raise UserError(f"{name}: {sizes!r} is not a shape; write it as in {kind}:4x1000")
    shape = tuple(map(int, shape))
    if np.prod(shape, dtype=object) * DTYPES[kind].size > MOST_BYTES:
        raise UserError(f"{name} takes more than 1 GiB; check the kernel at smaller shapes")
    return shape, DTYPES[kind], fill if colon else None


def _number(name: str, text: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    raise UserError(f"{name}: {text!r} is not a number; write DTYPE:SHAPE, a number or a file that ends in .npy")


def _filled(name: str, shape: tuple[int, ...], dtype: mx.Dtype, number: int | float) -> mx.array:
    try:
        if dtype in TOLERANCES:
            return mx.full(shape, float(number), dtype)
        return mx.array(np.full(shape, number.__index__(), _word(dtype)))
    except (AttributeError, OverflowError):
        raise UserError(f"{name}: {number} is no {_word(dtype)}; write one that is") from None


# What comes out -------------------------------------------------------------------------------------------------------


def _look_strictly(composed: compose.Composed, report: Report) -> str | None:
    """Adds what Metal forbids to the findings. Returns why not, if it was not looked for."""
    if any(finding.kind == "compile error" for finding in report.findings):
        return "the kernel does not compile"
    if "mlx/" in composed.text:
        return "the kernel includes headers of MLX"
    try:
        error = strict.check(composed)
    except UserError as missing:
        return str(missing)
    if error:
        report.findings.append(Finding("not Metal", Place(error.file, error.line), error.reason))
    return None


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raises TimeoutError in Python code that runs longer; only the main thread of a process can do so."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it took more than {TWIN_S} s; mend its loop, or check at smaller shapes")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, TWIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _twin(name: str, inputs: Arrays, outputs: Arrays) -> list[mx.array]:
    file, _, function = name.rpartition(":")
    found = importlib.util.spec_from_file_location("twin", file) if file.endswith(".py") else None
    if found is None:
        raise UserError(f"twin {name!r} is not FILE.py:FUNCTION")
    try:
        with _limited():
            module = importlib.util.module_from_spec(found)
            found.loader.exec_module(module)
            wanted = getattr(module, function)(*map(mx.array, inputs.values()))  # copies: it may write into them
            wanted = [checker.as_array(y) for y in (wanted if isinstance(wanted, tuple | list) else [wanted])]
            mx.eval(wanted)
    except (Exception, SystemExit) as error:  # whatever somebody's code does
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"the twin {name} failed: {reason}") from error
    if any(y.dtype == mx.complex64 for y in wanted):
        raise UserError(f"the twin {name} returns complex numbers; return real ones")
    shapes = [[y.shape for y in ys] for ys in (wanted, outputs.values())]
    if shapes[0] != shapes[1]:
        raise UserError(f"the twin returns shapes {shapes[0]}, but the outputs have {shapes[1]}; make them the same")
    return wanted


def _compare(name: str, got: mx.array, want: mx.array, tolerance: float | None, report: Report) -> Error:
    """Adds values that are wrong to the findings."""
    tolerance = TOLERANCES.get(got.dtype, 0) if tolerance is None else tolerance
    got, want = _float64(got), _float64(want)
    magnitude = float(np.abs(want[np.isfinite(want)]).max(initial=0))
    allowed = tolerance * max(1.0, magnitude)
    same = (got == want) | np.isnan(got) & np.isnan(want)
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0, np.nan_to_num(np.abs(got - want), nan=np.inf, posinf=np.inf))
    wrong = np.argwhere(error > allowed)
    if len(wrong):
        first = tuple(map(int, wrong[0]))
        words = (
            f"{len(wrong)} of {want.size} values are wrong, first {list(first)}: {got[first]:g}, not {want[first]:g}"
        )
        report.findings.append(Finding("wrong value", Place(f"output {name}", 0), words))
    return Error(float(error.max(initial=0)), magnitude, allowed)


def _float64(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32) if x.dtype == mx.bfloat16 else x).astype(np.float64)
