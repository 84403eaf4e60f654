"""One Metal kernel on whatever MLX computes on: an Apple GPU, an NVIDIA GPU through `cuda.h`, or the CPU through `host`."""

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from tinymlx import paths

_INCLUDE = re.compile(r'^#include "([\w.]+)"\n', re.MULTILINE)
# What Metal hands to a kernel, in CUDA's words.
_CUDA_ATTRIBUTES = """
  const uint3 threadgroup_position_in_grid = {blockIdx.x, blockIdx.y, blockIdx.z};
  const uint3 thread_position_in_threadgroup = {threadIdx.x, threadIdx.y, threadIdx.z};
  const uint thread_index_in_threadgroup = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const uint simdgroup_index_in_threadgroup = thread_index_in_threadgroup / 32;
  const uint thread_index_in_simdgroup = thread_index_in_threadgroup % 32;
"""


@functools.cache
def source(name: str) -> str:
    """The text of metal_kernels/<name>.metal with what it includes in its place, each file once."""
    folder, seen = paths.metal_kernels(), set()

    def inlined(file: Path) -> str:
        def replace(match: re.Match) -> str:
            if match[1] in seen:
                return ""
            seen.add(match[1])
            return inlined(folder / "include" / match[1])

        return _INCLUDE.sub(replace, file.read_text(encoding="utf-8"))

    return inlined(folder / f"{name}.metal")


class MetalKernel:
    """metal_kernels/<name>.metal, called by `body`: one call of the template there, with its attributes and threadgroup scratch.

    inputs, outputs: names of the buffers in `body`. A number that is not a template argument travels as an array of one element.
    """

    def __init__(self, name: str, *, inputs: Sequence[str], outputs: Sequence[str], body: str):
        self.name, self.inputs, self.outputs, self.body = name, list(inputs), list(outputs), body

    def arguments(self) -> dict[str, Any]:
        """As `mx.fast.metal_kernel` takes them."""
        return {
            "name": f"tinymlx_{self.name}",
            "input_names": self.inputs,
            "output_names": self.outputs,
            "header": source(self.name),
            "source": self.body,
        }

    @functools.cached_property
    def _metal(self):
        return mx.fast.metal_kernel(**self.arguments())

    @functools.cached_property
    def _cuda(self):
        shim = (Path(__file__).parent / "cuda.h").read_text(encoding="utf-8")
        body = _CUDA_ATTRIBUTES + re.sub(r"\bthreadgroup (?=\w)", "__shared__ ", self.body)
        changed = {"header": shim + source(self.name) + "\n#undef inline\n", "source": body}
        return mx.fast.cuda_kernel(**self.arguments() | changed)

    @functools.cached_property
    def host(self):
        """The kernel for the CPU, which can also be checked there (`host.check(...)`)."""
        from tinymlx.kernels.host import Kernel

        return Kernel(**self.arguments(), file=f"{self.name}.metal")

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
            "inputs": list(inputs),
            "template": list(template.items()),
            "grid": grid,
            "threadgroup": threadgroup,
            "output_shapes": list(shapes),
            "output_dtypes": list(dtypes),
        }
        if _reports is not None:
            report = self.host.check(**launch)
            _reports.append(report)
            # A kernel that did not come to its end has no outputs, and a finding that says so.
            return report.outputs or [mx.full(shape, mx.nan, dtype) for shape, dtype in zip(shapes, dtypes)]
        if mx.default_device() == mx.cpu:
            return self.host(**launch)
        return (self._metal if mx.metal.is_available() else self._cuda)(**launch)


_reports: list | None = None


@contextlib.contextmanager
def host_checked() -> Iterator[list]:
    """Within it kernels run on the CPU and watched; yields the list that each run's `host.Report` is appended to."""
    global _reports
    earlier, _reports = _reports, []
    try:
        yield _reports
    finally:
        _reports = earlier
