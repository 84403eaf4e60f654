"""Runs a kernel on this CPU, and checks how it uses memory and meets its neighbours.

    kernel = host.Kernel(name="double", input_names=["x"], output_names=["y"], source="...")   # as mx.fast.metal_kernel
    (y,) = kernel(inputs=[x], grid=(n, 1, 1), threadgroup=(256, 1, 1), output_shapes=[(n,)], output_dtypes=[mx.float32])
    report = kernel.check(inputs=[x], ...)     # the same arguments; report.findings is empty for a sound kernel

A call runs in this process, one schedule, nothing watched. A check runs in a process of its own with a time limit, so
that a kernel that crashes or never ends is a finding. It cannot show Apple's register pressure and occupancy, fused
multiply-add, denormals, order of reduction, errors of the language version, or the order of threadgroups. It is
stricter than Metal in one thing: all lanes of a simdgroup must come to a collective, ended ones too.

`run_text` and `check_text` do the same with the whole text of a kernel, signature and all, as a `.metal` file holds it.
"""

import ctypes
import re
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np

from tinymlx.errors import UserError
from tinymlx.kernels.host import compiler, compose, strict

MAX_THREADS = 1024
FAR = 1 << 16  # bytes from a buffer; past that, nothing says that it was meant
HARMLESS = {"same value written twice"}
KINDS = (
    *("race", "out of bounds", "uninitialised threadgroup memory", "uninitialised output", "unwritten output"),
    *("write to an input", "barrier divergence", "divergent collective", "missing lane", "over 32 KB", "hang"),
    *("stack overflow", "division by zero", "shift by the width of the type or more", "misaligned pointer"),
    *("wrong value", "compile error", "not Metal", "crash"),
)
SCHEDULES = 4  # forwards, backwards, and random ones
_running = threading.Lock()  # threadgroup memory is one for the process


@dataclass(frozen=True)
class Place:
    """Where, and by which thread of its threadgroup (-1: none in particular).

    callers: (file, line) of the calls that led there, the nearest first, as far as they were inlined.
    """

    file: str
    line: int
    thread: int = -1
    callers: tuple[tuple[str, int], ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file or "the kernel"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `kind` is one of `KINDS`; `other` is the second thread of a race or divergence."""

    kind: str
    place: Place
    words: str
    other: Place | None = None
    threadgroup: int = 0

    @property
    def lines(self) -> list[int]:
        return [self.place.line, *([self.other.line] if self.other else [])]

    def __str__(self) -> str:
        return f"{self.place}: {self.kind}: {self.words}"


@dataclass(frozen=True)
class Traffic:
    """Bytes that the threads moved from and to one buffer; `distinct` counts a byte read by many threads once."""

    size: int
    read: int
    distinct: int
    written: int


@dataclass
class Report:
    """What a check found. `outputs` is empty when the kernel did not come to its end."""

    outputs: list[mx.array] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(
        default_factory=list
    )  # harmless: one value written by two threads with nothing between
    traffic: dict[str, Traffic] = field(default_factory=dict)  # by the buffer's name
    scratch: dict[str, int] = field(default_factory=dict)  # bytes of threadgroup memory by name

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or "nothing found"


class Kernel:
    """The arguments of mx.fast.metal_kernel, and `file`: the name under which lines of `header` are reported."""

    def __init__(
        self,
        *,
        name: str,
        input_names: list[str],
        output_names: list[str],
        source: str,
        header: str = "",
        ensure_row_contiguous: bool = True,
        atomic_outputs: bool = False,
        file: str | None = None,
    ):
        self.name, self.input_names, self.output_names = name, list(input_names), list(output_names)
        self.header, self.source = header, source
        self.files = (file or f"{name}.metal", f"{name}.source" if header or file is None else file)
        self._metal = mx.fast.metal_kernel(
            name=name,
            input_names=self.input_names,
            output_names=self.output_names,
            source=source,
            header=header,
            ensure_row_contiguous=ensure_row_contiguous,
            atomic_outputs=atomic_outputs,
        )
        self._composed: dict[tuple, compose.Composed] = {}
        self._loaded: dict[compose.Composed, ctypes.c_void_p] = {}

    def composed(self, *, inputs, output_shapes, output_dtypes, template=None) -> compose.Composed:
        """The kernel as MLX writes it for these arguments. Traced once for each combination of types and small sizes.

        Raises UserError when the inputs do not fit the names.
        """
        arrays = [as_array(x) for x in inputs]
        if len(arrays) != len(self.input_names):
            raise UserError(
                f"{self.name}: {len(arrays)} inputs given, {len(self.input_names)} named; pass one for each name"
            )
        template = list(template or [])
        key = (
            tuple((a.dtype, a.ndim == 0, a.size < 8) for a in arrays),
            tuple((n, v) for n, v in template),
            tuple(output_dtypes),
        )
        if key not in self._composed:
            call = {
                "grid": (1, 1, 1),
                "threadgroup": (1, 1, 1),
                "output_shapes": output_shapes,
                "output_dtypes": output_dtypes,
            }
            if template:
                call["template"] = template
            try:
                text = compose.trace(lambda *xs: self._metal(inputs=list(xs), verbose=True, **call), arrays)
            except (ValueError, TypeError, RuntimeError) as error:
                reason = " ".join(str(error).split())
                raise UserError(
                    f"{self.name}: MLX refuses the arguments ({reason}); see mx.fast.metal_kernel"
                ) from None
            self._composed[key] = compose.parse(compose.mark_lines(text, self.header, self.source, *self.files))
        return self._composed[key]

    def __call__(self, *, inputs, grid, threadgroup, output_shapes, output_dtypes, template=None, init_value=None):
        """Runs the kernel here and now. -> the outputs.

        Raises CompileError when it does not compile, UserError when its threads diverge or the arguments do not fit.
        """
        check_launch(self.name, grid, threadgroup)
        inputs = [as_array(x) for x in inputs]
        composed = self.composed(
            inputs=inputs, output_shapes=output_shapes, output_dtypes=output_dtypes, template=template
        )
        outputs = [mx.full(s, init_value or 0, d) for s, d in zip(output_shapes, output_dtypes)]
        mx.eval(inputs, outputs)
        run(composed, self._buffers(composed, inputs, outputs), grid, threadgroup, self._loaded)
        return outputs

    def check(
        self,
        *,
        inputs,
        grid,
        threadgroup,
        output_shapes,
        output_dtypes,
        template=None,
        init_value=None,
        expected: list | None = None,
        tolerance: float = 1e-5,
        schedules: int = SCHEDULES,
        seconds: float = 30,
        using: compiler.Compiler | None = None,
    ) -> Report:
        """Runs the kernel watched.

        expected: what the outputs must equal, to `tolerance` relative to their largest magnitude.
        seconds: of computing time a schedule, after which the kernel counts as hanging.
        """
        check_launch(self.name, grid, threadgroup)
        inputs = [as_array(x) for x in inputs]
        composed = self.composed(
            inputs=inputs, output_shapes=output_shapes, output_dtypes=output_dtypes, template=template
        )
        outputs = [mx.full(s, init_value or 0, d) for s, d in zip(output_shapes, output_dtypes)]
        mx.eval(inputs, outputs)
        report = check(
            composed,
            self._buffers(composed, inputs, outputs),
            set(self.output_names),
            grid,
            threadgroup,
            initialised=init_value is not None,
            schedules=schedules,
            seconds=seconds,
            using=using,
        )
        report.findings += wrong_values(self, report.outputs, expected, tolerance)
        return report

    def strict(self, *, inputs, output_shapes, output_dtypes, template=None) -> list[Finding]:
        """What Metal forbids and a CPU's compiler takes: at most one finding, of kind "not Metal".

        Raises UserError without clang.
        """
        composed = self.composed(
            inputs=inputs, output_shapes=output_shapes, output_dtypes=output_dtypes, template=template
        )
        error = strict.check(composed)
        return [Finding("not Metal", Place(error.file, error.line), error.reason)] if error else []

    def _buffers(self, composed, inputs: list[mx.array], outputs: list[mx.array]) -> dict[str, mx.array | np.ndarray]:
        """By the name of the parameter: the arrays, and what the kernel asks of shapes, strides and dimensions."""
        named = dict(zip(self.input_names, inputs)) | dict(zip(self.output_names, outputs))
        return {p.name: named[p.name] if p.name in named else shape_of(named, p.name) for p in composed.buffers}


def shape_of(arrays: dict[str, mx.array], name: str) -> np.ndarray:
    """'x_shape', 'x_strides' or 'x_ndim' of the row-contiguous array x."""
    base, _, what = name.rpartition("_")
    shape = arrays[base].shape
    if what == "ndim":
        return np.array(len(shape), np.int32)
    if what == "shape":
        return np.array(shape or (1,), np.int32)
    return np.array([int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))] or [1], np.int64)


def whole_text(text: str, function: str | None, inputs: dict, outputs: dict, file: str):
    """(kernel, buffers) of a whole text: what `run_text` and `check_text` share."""
    composed = compose.parse(f'#line 1 "{file}"\n{text}', function)
    made = {name: mx.zeros(shape, dtype) for name, (shape, dtype) in outputs.items()}
    buffers = {name: as_array(x) for name, x in inputs.items()} | made
    missing = [p.name for p in composed.buffers if p.name not in buffers]
    if missing:
        raise UserError(f"{file}: no array for the parameter {missing[0]}; pass it among inputs or outputs")
    mx.eval(list(buffers.values()))
    return composed, buffers


def run_text(text, function=None, *, inputs, outputs, grid, threadgroup, file="kernel.metal") -> list[mx.array]:
    """Runs the kernel `function` ('softmax' or 'softmax<float, 4>', by default the only one) of a whole text.

    inputs: name of the parameter -> array. outputs: name -> (shape, dtype). -> the outputs, in that order.
    """
    check_launch(file, grid, threadgroup)
    composed, buffers = whole_text(text, function, inputs, outputs, file)
    run(composed, buffers, grid, threadgroup, {})
    return [buffers[name] for name in outputs]


def check_text(text, function=None, *, inputs, outputs, grid, threadgroup, file="kernel.metal", **options) -> Report:
    """The same, watched. Options as of `check`; outputs stand in the order of the signature."""
    check_launch(file, grid, threadgroup)
    composed, buffers = whole_text(text, function, inputs, outputs, file)
    return check(composed, buffers, set(outputs), grid, threadgroup, **options)


def check_launch(name: str, grid, threadgroup) -> None:
    if len(grid) != 3 or len(threadgroup) != 3 or min(*grid, *threadgroup) < 0:
        raise UserError(f"{name}: grid {grid} and threadgroup {threadgroup} must be three sizes each, none negative")
    threads = int(np.prod([min(g, t) for g, t in zip(grid, threadgroup)]))
    if threads > MAX_THREADS:
        raise UserError(f"{name}: threadgroup {tuple(threadgroup)} has {threads} threads; Metal allows {MAX_THREADS}")


def as_array(x) -> mx.array:
    return mx.contiguous(x) if isinstance(x, mx.array) else mx.array(x)


def view(a: mx.array | np.ndarray) -> np.ndarray:
    """The array's own memory as bytes. Writing there changes the array."""
    return np.frombuffer(memoryview(a), np.uint8) if a.size else np.zeros(16, np.uint8)


def run(composed: compose.Composed, buffers: dict, grid, threadgroup, loaded: dict, schedule: int = 0) -> None:
    """Calls the compiled kernel on the arrays' memory. Raises UserError when threads diverge.

    loaded: what was loaded before, by kernel; the caller keeps it.
    """
    function = loaded.get(composed)
    if function is None:
        _host_run()
        library = compiler.load(compiler.library(composed))
        function = loaded[composed] = ctypes.cast(library.host_entry, ctypes.c_void_p)
    addresses = (ctypes.c_void_p * 64)(*(address(buffers[p.name]) for p in composed.buffers))
    sizes = ctypes.c_uint * 3
    with _running:
        message = _host_run()(function, addresses, sizes(*grid), sizes(*threadgroup), schedule)
    if message:
        raise UserError(f"{message.decode()}; run a check of this kernel")


def address(a: mx.array | np.ndarray) -> int:
    return (a if isinstance(a, np.ndarray) else view(a)).ctypes.data


_runtime = []


def _host_run():
    if not _runtime:
        function = compiler.load(compiler.runtime(), ctypes.RTLD_GLOBAL).host_run
        function.restype = ctypes.c_char_p
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
        _runtime.append(function)
    return _runtime[0]


def check(
    composed: compose.Composed,
    buffers: dict[str, mx.array | np.ndarray],
    outputs: set[str],
    grid,
    threadgroup,
    *,
    initialised: bool = False,
    schedules: int = SCHEDULES,
    seconds: float = 30,
    using: compiler.Compiler | None = None,
) -> Report:
    """Runs a kernel watched, in a process of its own. initialised: the outputs' contents count as written."""
    using = using or compiler.native()
    try:
        program = compiler.program(composed, using)
    except compiler.CompileError as error:
        return Report(findings=[Finding("compile error", Place(error.file, error.line), error.reason)])
    with tempfile.TemporaryDirectory() as folder:
        job, report, results = (Path(folder, name) for name in ("job", "report", "results"))
        with job.open("wb") as file:
            file.write(struct.pack("=6I2id", *grid, *threadgroup, schedules, len(composed.buffers), seconds))
            for p in composed.buffers:
                memory, is_output = view(buffers[p.name])[: buffers[p.name].nbytes], p.name in outputs
                name = p.name.encode()
                file.write(struct.pack("=3iQ", is_output, initialised, len(name), memory.nbytes) + name)
                if not is_output or initialised:
                    file.write(memory)
        limit = 10 * schedules * seconds + 60  # on the wall clock, should the program's own limit not hold
        command = [*using.runner, str(program), str(job), str(report), str(results)]
        try:
            done = subprocess.run(command, timeout=limit, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return Report(findings=[Finding("hang", Place("", 0), f"no end after {limit:.0f} s")])
        except OSError as error:
            raise compiler.unusable(program, error) from None
        if done.returncode or not report.exists():
            return Report(
                findings=[Finding("crash", Place("", 0), f"the checking process ended with {done.returncode}")]
            )
        lines = [line.split("\t") for line in report.read_text().splitlines()]
        raw = results.read_bytes() if results.exists() else b""
    arrays, offset = [], 0
    for p in composed.buffers:
        if p.name in outputs and raw:
            shape, dtype, size = buffers[p.name].shape, buffers[p.name].dtype, buffers[p.name].nbytes
            arrays.append(
                mx.array(np.frombuffer(raw, np.uint8, size, offset)).view(dtype).reshape(shape)
                if size
                else mx.zeros(shape, dtype)
            )
            offset += size
    items = {name: (a.nbytes // a.size if a.size else 1) for name, a in buffers.items()}
    found = [line[1:] for line in lines if line[0] == "finding"]
    places = symbols(program, {int(pc) for f in found for pc in (f[3], f[7])} - {0})
    memory = [line[1:] for line in lines if line[0] == "memory"]
    seen = unique(finding(f, places, items) for f in found)
    return Report(
        arrays,
        [f for f in seen if f.kind not in HARMLESS],
        [f for f in seen if f.kind in HARMLESS],
        {name: Traffic(*map(int, numbers)) for kind, name, *numbers in memory if kind != "2"},
        {name: int(size) for kind, name, size, *_ in memory if kind == "2"},
    )


def symbols(program: Path, addresses: set[int]) -> dict[int, list[tuple[str, int]]]:
    """Return addresses -> (file, line) of the kernel: the innermost place that is not metal.h's, then the calls around it."""
    if not addresses:
        return {}
    ordered = sorted(addresses)
    command = ["addr2line", "-i", "-a", "-e", str(program), *(hex(a - 1) for a in ordered)]
    printed = subprocess.run(command, capture_output=True, text=True).stdout
    places: dict[int, list[tuple[str, int]]] = {}
    for address, block in zip(ordered, re.split(r"^0x[0-9a-f]+\n", printed, flags=re.MULTILINE)[1:]):
        frames = [re.match(r"(.*):(\d+)", line) for line in block.splitlines()]
        frames = [(compiler.short(f[1]), int(f[2])) for f in frames if f]
        own = [f for f in frames if not compiler.is_ours(f[0])]
        places[address] = own or frames or [("", 0)]
    return places


def unique(findings: Iterable[Finding]) -> list[Finding]:
    """The first of each kind for each line, or pair of lines."""
    first: dict[tuple, Finding] = {}
    for f in findings:
        first.setdefault((f.kind, f.place.file, *sorted(f.lines)), f)
    return list(first.values())


def finding(fields: list[str], places: dict[int, list[tuple[str, int]]], items: dict[str, int]) -> Finding:
    """From a line of shadow.cpp's report."""
    kind, group, thread, pc, file, line, thread2, pc2, file2, line2, name, offset, *more = fields
    group = int(group)
    (at, *calls), (other, *calls2) = (
        places.get(int(address)) or [(compiler.short(name), int(number))]
        for address, name, number in ((pc, file, line), (pc2, file2, line2))
    )
    at, other = Place(*at, int(thread), tuple(calls)), Place(*other, int(thread2), tuple(calls2))
    where = f"{name}[{int(offset) // items[name]}]" if name in items else f"byte {offset} of {name}"
    who = f"thread {thread} of threadgroup {group}"
    pair = None
    if kind in ("race", "same value written twice"):
        verb, verb2, group2 = more
        past = {"read": "reads", "write": "writes", "update": "updates"}
        whose = "" if int(group2) == group else f" of threadgroup {group2}"
        words = f"{who} {past[verb]} {where}, which thread {thread2}{whose} {past[verb2]} at {other}"
        words += " with no barrier for it between"
        pair = other
    elif kind == "out of bounds":
        words = f"{who} ends in a fault"
        if more[0]:
            size = int(more[2]) // items.get(name, 1)
            words = f"{who} {more[0]}s {where}; {name} has {size} {'elements' if name in items else 'bytes'}"
            if not -FAR < int(offset) < int(more[2]) + FAR:
                words = f"{who} {more[0]}s at an address that belongs to no buffer"
    elif kind in ("barrier divergence", "divergent collective"):
        does = f"waits at {more[1]}, {other}" if more[1] else "has ended"
        words = f"{who} waits at {more[0]}, but thread {thread2} {does}"
        pair = other
    elif kind == "unwritten output":
        count = int(more[0]) // items.get(name, 1)
        words, at = f"{count} elements of {name} are never written, the first is {where}", Place(f"output {name}", 0)
    elif kind == "over 32 KB":
        words = f"with {name} the threadgroup memory comes to {more[0]} bytes; Metal allows 32768"
    elif kind == "missing lane":
        words = f"{who} asks {more[0]} for lane {more[1]}, which does not exist"
    elif kind == "write to an input":
        words = f"{who} writes {where}"
    elif kind.startswith("uninitialised"):
        words = f"{who} reads {where} before anything wrote it"
    elif kind == "hang":
        words = f"{who} never ends"
    else:
        words = who
    return Finding(kind, at, words, pair, group)


def wrong_values(kernel: Kernel, outputs: list[mx.array], expected: list | None, tolerance: float) -> list[Finding]:
    found = []
    for name, got, want in zip(kernel.output_names, outputs, expected or []):
        got, want = (
            np.array(got.astype(mx.float32), np.float64),
            np.array(as_array(want).astype(mx.float32), np.float64),
        )
        bound = tolerance * max(1.0, float(np.abs(want).max(initial=0)))
        wrong = ~(np.abs(got - want) <= bound) & ~(np.isnan(got) & np.isnan(want)) & ~(got == want)
        if wrong.any():
            first = tuple(int(i) for i in np.argwhere(wrong)[0])
            words = f"{int(wrong.sum())} of {wrong.size} values of {name} are wrong, "
            words += f"first {list(first)}: {got[first]:g}, not {want[first]:g}"
            found.append(Finding("wrong value", Place(f"output {name}", 0), words))
    return found
