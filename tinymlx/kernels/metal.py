"""One Metal kernel on whatever MLX computes on: an Apple GPU, an NVIDIA GPU through `cuda.h`, or the CPU through `host`."""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from tinymlx import paths
from tinymlx.kernels.gradient import refusing

_INCLUDE = re.compile(r'^#include "([\w.]+)"\n', re.MULTILINE)
# What Metal hands to a kernel, in CUDA's words.
_CUDA_ATTRIBUTES = """
  const uint3 threadgroup_position_in_grid = {blockIdx.x, blockIdx.y, blockIdx.z};
  const uint3 threadgroups_per_grid = {gridDim.x, gridDim.y, gridDim.z};
  const uint3 thread_position_in_threadgroup = {threadIdx.x, threadIdx.y, threadIdx.z};
  const uint thread_index_in_threadgroup = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const uint simdgroup_index_in_threadgroup = thread_index_in_threadgroup / 32;
  const uint thread_index_in_simdgroup = thread_index_in_threadgroup % 32;
"""


def source(name: str) -> str:
    """The text of metal_kernels/<name>.metal with what it includes in its place, each file once, under `#line` marks.

    A file that is `overlaid` comes as it is there.
    """
    seen = set()

    def inlined(file: str) -> str:
        text = text_of(file)
        parts, position = [], 0
        for match in _INCLUDE.finditer(text):
            parts.append(text[position : match.start()])
            if match[1] not in seen:
                seen.add(match[1])
                parts.append(f'#line 1 "{match[1]}"\n{inlined(f"include/{match[1]}")}')
                parts.append(f'#line {text.count(chr(10), 0, match.end()) + 1} "{Path(file).name}"\n')
            else:
                parts.append("\n")
            position = match.end()
        return "".join([*parts, text[position:]])

    return inlined(f"{name}.metal")


def text_of(file: str) -> str:
    """A file's text, named relative to metal_kernels/: the one in force, if it is overlaid. Raises OSError where there is none."""
    return _overlays.get(file) or _read(file)


@functools.cache
def _read(file: str) -> str:
    return (paths.metal_kernels() / file).read_text(encoding="utf-8")


_overlays: dict[str, str] = {}
_called: set[str] = set()


@contextlib.contextmanager
def overlaid(files: Mapping[str, str]) -> Iterator[None]:
    """Put texts in the place of files of metal_kernels/ for a while: `with overlaid({"rms_norm.metal": mine}): ...`.

    Names are relative to metal_kernels/; one that is not there is added. Kernels are compiled anew within, and as before after it.
    """
    earlier = dict(_overlays)
    if not earlier:
        _called.clear()
    _overlays.update(files)
    try:
        yield
    finally:
        _overlays.clear()
        _overlays.update(earlier)


def overlays() -> frozenset[tuple[str, str]]:
    """What is overlaid now: a compiled step depends on it."""
    return frozenset(_overlays.items())


def called() -> set[str]:
    """Names of the kernels called since the outermost `overlaid` began."""
    return set(_called)


class MetalKernel:
    """metal_kernels/<name>.metal, called by `body`: one call of the template there, with its attributes and threadgroup scratch.

    inputs, outputs: names of the buffers in `body`. A number that is not a template argument travels as an array of one element.
    """

    def __init__(self, name: str, *, inputs: Sequence[str], outputs: Sequence[str], body: str):
        self.name, self.inputs, self.outputs, self.body = name, list(inputs), list(outputs), body
        self._made: dict[tuple[str, frozenset], Any] = {}  # by machine and what is overlaid

    def arguments(self) -> dict[str, Any]:
        """As `mx.fast.metal_kernel` takes them."""
        return {
            "name": f"tinymlx_{self.name}",
            "input_names": self.inputs,
            "output_names": self.outputs,
            "header": source(self.name),
            "source": self.body,
        }

    def _make(self, machine: str, make: Callable[[], Any]) -> Any:
        _called.add(self.name)
        key = machine, overlays()
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _make_cuda(self) -> Any:
        shim = (Path(__file__).parent / "cuda.h").read_text(encoding="utf-8")
        body = _CUDA_ATTRIBUTES + re.sub(r"\bthreadgroup (?=\w)", "__shared__ ", self.body)
        changed = {"header": shim + source(self.name) + "\n#undef inline\n", "source": body}
        return mx.fast.cuda_kernel(**self.arguments() | changed)

    @property
    def host(self):
        """The kernel for the CPU, which can also be checked there (`host.check(...)`)."""
        from tinymlx.kernels.host import Kernel

        return self._make("host", lambda: Kernel(**self.arguments(), file=f"{self.name}.metal"))

    def __call__(
        self,
        *inputs: mx.array,
        template: Mapping[str, Any],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        """grid: threads, not threadgroups. Returns one array for each of `outputs`."""
        launch = {
            "inputs": [_at_least_8(x) for x in inputs],
            "template": list(template.items()),
            "grid": grid,
            "threadgroup": threadgroup,
            "output_shapes": list(shapes),
            "output_dtypes": list(dtypes),
        }
        if _reports is not None:
            report = self.host.check(**launch, **_check_options)
            _reports.append(report)
            # A kernel that did not come to its end has no outputs, and a finding that says so.
            return report.outputs or [mx.full(shape, mx.nan, dtype) for shape, dtype in zip(shapes, dtypes)]
        if mx.default_device() == mx.cpu:
            return refusing(lambda: self.host(**launch), self.name, launch["inputs"])
        if mx.metal.is_available():
            return self._make("metal", lambda: mx.fast.metal_kernel(**self.arguments()))(**launch)
        return self._make("cuda", self._make_cuda)(**launch)


def _at_least_8(x: mx.array) -> mx.array:
    """MLX hands arrays of fewer than 8 elements over as `constant T*`, which no kernel here expects: a longer copy is `device`."""
    return x if x.size >= 8 else mx.pad(x.reshape(-1), (0, 8 - x.size))


_reports: list | None = None
_check_options: dict[str, Any] = {}


@contextlib.contextmanager
def host_checked(**options) -> Iterator[list]:
    """Within it kernels run on the CPU and watched; yields the list that each run's `host.Report` is appended to.

    options: `seconds` and others of `host.Kernel.check`.
    """
    global _reports, _check_options
    earlier = _reports, _check_options
    _reports, _check_options = [], options
    try:
        yield _reports
    finally:
        _reports, _check_options = earlier
