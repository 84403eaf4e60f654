"""norm_gate_up: the block's second norm, gate and up projections, SwiGLU."""

import functools

import mlx.core as mx

from tinymlx import ops
from tinymlx.kernels import cpu, linear_mlx
from tinymlx.kernels.metal import MetalKernel
from tinymlx.kernels.route import Operation, Route
from tinymlx.kernels.w4_matmul import w4_linear
from tinymlx.kernels.w4_matvec import PLACE, SCRATCH, adapted, check_norm, constant, launch, most_rows, packed, takes
from tinymlx.ops.linear import Linear


def twin(x: mx.array, weight: mx.array, eps: float, gate: Linear, up: Linear) -> mx.array:
    """x: [B, L, K]; weight: [K]; gate, up: [N, K]. Returns silu(gate) * up of the normed x: [B, L, N]."""
    normed = ops.rms_norm(x, weight, eps)
    return ops.swiglu(ops.linear(normed, gate), ops.linear(normed, up))


def mlx(x: mx.array, weight: mx.array, eps: float, gate: Linear, up: Linear) -> mx.array:
    normed = mx.fast.rms_norm(x, weight, eps)
    return ops.swiglu(linear_mlx.linear(normed, gate), linear_mlx.linear(normed, up))


def host(x: mx.array, weight: mx.array, eps: float, gate: Linear, up: Linear) -> mx.array:
    return cpu.linears(x, gate, up, norm=(weight, eps), swiglu=True)[0]


@functools.cache
def _kernel(delta: bool) -> MetalKernel:
    packings = [f"{part}{name}" for name in "gu" for part in ("w", "scales_", "biases_")]
    deltas = ["dg", "du"] if delta else []
    weights = ", ".join(f"Packed<S>{{w{name}, scales_{name}, biases_{name}}}" for name in "gu")
    return MetalKernel(
        "norm_gate_up",
        inputs=("x", "weight", "eps", *packings, *deltas),
        outputs=("y",),
        body=f"""  {SCRATCH}norm_gate_up<T, MATRIX, M, GROUP, BITS, MX, {str(delta).lower()}, OUTPUTS, SPLITS>(x, weight, eps, {weights},
      {", ".join(deltas or "xx")}, y, K, N, {PLACE}""",
    )


def ours(x: mx.array, weight: mx.array, eps: float, gate: Linear, up: Linear) -> mx.array:
    if x.size // x.shape[-1] > most_rows(x, normed=True):
        normed = mx.fast.rms_norm(x, weight, eps)
        return ops.swiglu(w4_linear(normed, gate), w4_linear(normed, up))
    check_norm(x, weight)
    deltas = adapted(mx.fast.rms_norm(x, weight, eps), gate, up)
    N = gate.weight.shape[0]
    return _kernel(deltas is not None)(
        *(x, weight, constant(eps), *packed(gate), *packed(up), *(deltas or ())),
        **launch(x, gate, 2 * N, True, N=N),
        shapes=[(*x.shape[:-1], N)],
        dtypes=[x.dtype],
    )[0]


def _takes(x: mx.array, weight: mx.array, eps: float, gate: Linear, up: Linear) -> bool:
    return takes(x, gate, up, norm=weight) and gate.weight.shape == up.weight.shape


norm_gate_up = Operation(
    "norm_gate_up",
    covers=("rms_norm", "linear", "dequantize", "swiglu", "silu"),
    routes={
        "twin": Route(twin),
        "mlx": Route(mlx),
        "host": Route(host, applies=lambda x, weight, eps, *w: cpu.takes(x, *w, norm=weight)),
        "ours": Route(ours, applies=_takes),
    },
)
