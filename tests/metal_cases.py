"""Small sound kernels (tests/kernels) with arguments and the values they must give."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from tinymlx.kernels import host

FOLDER = Path(__file__).resolve().parent / "kernels"


@dataclass(frozen=True)
class Case:
    """The arguments of Kernel and of its call, and `expected`, one array an output."""

    kernel: dict
    launch: dict
    expected: list
    tolerance: float = 2e-6

    @property
    def text(self) -> dict:
        """What of the call decides the text of the kernel."""
        return {k: self.launch[k] for k in ("inputs", "template", "output_shapes", "output_dtypes")}

    def check(self, edit: Callable[[str], str] = lambda text: text, **options) -> host.Report:
        """Checks the kernel after `edit` has changed its header and its source."""
        kernel = host.Kernel(
            **{**self.kernel, "header": edit(self.kernel["header"]), "source": edit(self.kernel["source"])}
        )
        return kernel.check(**{**self.launch, "expected": self.expected, "tolerance": self.tolerance, **options})


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def case(name, source, inputs, expected, grid, threadgroup, tolerance=2e-6, template=(), dtypes=None, **launch) -> Case:
    kernel = dict(
        name=name,
        input_names=list(inputs),
        output_names=["y"],
        header=(FOLDER / f"{name}.metal").read_text(),
        source=source,
        file=f"{name}.metal",
    )
    launch = dict(
        inputs=[mx.array(x) for x in inputs.values()],
        template=list(template),
        grid=grid,
        threadgroup=threadgroup,
        output_shapes=[expected.shape],
        output_dtypes=[dtypes or mx.float32],
        **launch,
    )
    return Case(kernel, launch, [expected], tolerance)


def number(value):
    return np.uint32(value)


ROUNDING = {mx.float32: 2e-6, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}


def map_row(dtype=mx.float32, n=103) -> Case:
    x = mx.array(draw(n)).astype(dtype)
    inputs = {"x": x, "a": np.float32(1.5), "b": np.float32(-2), "n": number(n)}
    source = "map_row(x, a, b, y, n, thread_position_in_grid.x);"
    want = 1.5 * x.astype(mx.float32) - 2
    return case("map", source, inputs, want, (n // 4 + 1, 1, 1), (32, 1, 1), ROUNDING[dtype], dtypes=dtype)


def tree_sum(rows=3, n=300) -> Case:
    x = draw(rows, n)
    source = """threadgroup float part[128];
tree_sum<T, 128>(x, y, n, threadgroup_position_in_grid.x, thread_position_in_threadgroup.x, part);"""
    inputs = {"x": x, "n": number(n)}
    template = [("T", mx.float32)]
    return case("tree_sum", source, inputs, x.sum(-1), (128 * rows, 1, 1), (128, 1, 1), 1e-5, template)


def softmax(dtype=mx.float32, rows=2, n=150) -> Case:
    x = mx.array(draw(rows, n)).astype(dtype)
    source = """threadgroup float part[4];
softmax_row<T, 4>(x, y, n, threadgroup_position_in_grid.x, thread_position_in_threadgroup.x, thread_index_in_simdgroup,
                  simdgroup_index_in_threadgroup, part);"""
    want = mx.softmax(x.astype(mx.float32), axis=-1)
    inputs = {"x": x, "n": number(n)}
    template = [("T", dtype)]
    return case("softmax", source, inputs, want, (128 * rows, 1, 1), (128, 1, 1), ROUNDING[dtype], template, dtype)


def product(dtype=mx.float32, M=16, N=32, K=20) -> Case:
    a, b = (mx.array(draw(*shape, seed=i)).astype(dtype) for i, shape in enumerate([(M, K), (K, N)]))
    source = """threadgroup T left[16 * 8], right[8 * 16];
product(a, b, y, uint(a_shape[0]), uint(b_shape[1]), uint(a_shape[1]), threadgroup_position_in_grid.xy,
        thread_index_in_threadgroup, simdgroup_index_in_threadgroup, left, right);"""
    want = a.astype(mx.float32) @ b.astype(mx.float32)
    grid = (64 * (N // 16), M // 16, 1)
    return case("product", source, {"a": a, "b": b}, want, grid, (64, 1, 1), 1e-5, [("T", dtype)])


def histogram(n=1000) -> Case:
    x = np.random.default_rng(0).integers(0, 16, n).astype(np.int32)
    source = """threadgroup atomic<uint> mine[16];
histogram(x, y, n, thread_position_in_grid.x, thread_position_in_threadgroup.x, threads_per_threadgroup.x, mine);"""
    want = np.bincount(x, minlength=16).astype(np.uint32)
    made = case(
        "histogram", source, {"x": x, "n": number(n)}, want, (n, 1, 1), (64, 1, 1), 0, dtypes=mx.uint32, init_value=0
    )
    return Case({**made.kernel, "atomic_outputs": True}, made.launch, made.expected, 0)


def transpose(dtype=mx.float32, rows=50, columns=70) -> Case:
    x = mx.array(draw(rows, columns)).astype(dtype)
    source = """threadgroup T block[32][33];
transpose(x, y, uint(x_shape[0]), uint(x_shape[1]), threadgroup_position_in_grid.xy, thread_position_in_threadgroup.xy,
          block);"""
    grid = (32 * -(-columns // 32), 8 * -(-rows // 32), 1)
    return case("transpose", source, {"x": x}, x.T, grid, (32, 8, 1), 0, [("T", dtype)], dtype)


def w4_dot(dtype=mx.float32, N=5, K=512) -> Case:
    weight, scales, biases = mx.quantize(mx.array(draw(N, K)) / K**0.5, group_size=32, bits=4)
    scales, biases, x = (v.astype(dtype) for v in (scales, biases, mx.array(draw(K, seed=1))))
    dense = mx.dequantize(weight, *(v.astype(mx.float32) for v in (scales, biases)), group_size=32, bits=4)
    source = """w4_dot(w, scales, biases, x, y, uint(x_shape[0]), threadgroup_position_in_grid.x,
       thread_index_in_simdgroup);"""
    inputs = {"w": weight, "scales": scales, "biases": biases, "x": x}
    want = dense @ x.astype(mx.float32)
    return case("w4_dot", source, inputs, want, (32 * N, 1, 1), (32, 1, 1), ROUNDING[dtype], [("T", dtype)], dtype)


def scan(n=200) -> Case:
    x = draw(n)
    source = """threadgroup float sums[32];
scan(x, y, n, thread_position_in_threadgroup.x, thread_index_in_simdgroup, simdgroup_index_in_threadgroup,
     simdgroups_per_threadgroup, sums);"""
    threads = -(-n // 32) * 32
    return case("scan", source, {"x": x, "n": number(n)}, x.cumsum(), (threads, 1, 1), (threads, 1, 1), 1e-5)


def stencil(n=150) -> Case:
    x = draw(n)
    source = """threadgroup float block[66];
stencil<64>(x, y, n, thread_position_in_grid.x, thread_position_in_threadgroup.x, block);"""
    around = np.pad(x, 1)
    want = around[:-2] + around[1:-1] + around[2:]
    return case("stencil", source, {"x": x, "n": number(n)}, want, (192, 1, 1), (64, 1, 1))


def reverse(n=128) -> Case:
    x = draw(n)
    source = """threadgroup float scratch[64];
reverse(x, y, thread_position_in_grid.x, thread_index_in_simdgroup, simdgroup_index_in_threadgroup, scratch);"""
    turned = x.reshape(-1, 32)[:, ::-1].reshape(-1)
    sums = x.reshape(-1, 4).sum(-1).repeat(4)
    return case("reverse", source, {"x": x}, np.stack([turned, sums], -1), (n, 1, 1), (64, 1, 1))


CASES: dict[str, Callable[..., Case]] = {
    "map": map_row,
    "tree_sum": tree_sum,
    "softmax": softmax,
    "product": product,
    "histogram": histogram,
    "transpose": transpose,
    "w4_dot": w4_dot,
    "scan": scan,
    "stencil": stencil,
    "reverse": reverse,
}
