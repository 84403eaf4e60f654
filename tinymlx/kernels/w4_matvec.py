"""Up to 16 rows times a 4-bit weight, by our own kernel."""

import mlx.core as mx

from tinymlx.kernels.metal import MetalKernel
from tinymlx.ops.linear import Linear

MOST_ROWS = 16
OUTPUTS = 4  # a simdgroup: more give each load of x more to do, fewer fill the GPU with small weights
SIMDGROUPS = 4
KERNEL = MetalKernel(
    "w4_matvec",
    inputs=("x", "w", "scales", "biases"),
    outputs=("y",),
    body="""  const uint first = (threadgroup_position_in_grid.x * SIMDGROUPS + simdgroup_index_in_threadgroup) * OUTPUTS;
  w4_matvec<T, S, M, GROUP, OUTPUTS>(x, w, scales, biases, y, K, N, first, thread_index_in_simdgroup);
""",
)


def w4_matvec(x: mx.array, w: Linear) -> mx.array:
    """x: [..., K] of at most 16 rows; w: affine, 4 bits, [N, K / 8] uint32. Returns x W^T [..., N] in x's dtype, without bias or adapter.

    Raises ValueError for another packing, shapes that do not fit, more rows, or a dtype that is not float32, float16 or bfloat16.
    """
    quantization, K = w.quantization, x.shape[-1]
    if quantization is None or quantization.bits != 4 or quantization.mode != "affine":
        raise ValueError(f"w is packed as {quantization}; affine with 4 bits is accepted")
    if quantization.group_size not in (32, 64, 128) or K % quantization.group_size:
        raise ValueError(
            f"group_size is {quantization.group_size} and K {K}; 32, 64 and 128 that divide K are accepted"
        )
    if w.weight.ndim != 2 or w.weight.shape[1] * 8 != K or w.weight.dtype != mx.uint32:
        raise ValueError(f"w is {w.weight.dtype} {w.weight.shape}; x of {x.shape} needs uint32 [N, {K // 8}]")
    for name, array in (("x", x), ("scales", w.scales)):
        if array.dtype not in (mx.float32, mx.float16, mx.bfloat16):
            raise ValueError(f"{name} is {array.dtype}; float32, float16 and bfloat16 are accepted")
    rows, N = x.size // K, w.weight.shape[0]
    if rows > MOST_ROWS:
        raise ValueError(f"x has {rows} rows; at most {MOST_ROWS} are accepted")
    shape = (*x.shape[:-1], N)
    if rows == 0 or N == 0:
        return mx.zeros(shape, x.dtype)
    threadgroups = -(-N // (OUTPUTS * SIMDGROUPS))
    numbers = {
        "M": rows,
        "GROUP": quantization.group_size,
        "OUTPUTS": OUTPUTS,
        "SIMDGROUPS": SIMDGROUPS,
        "K": K,
        "N": N,
    }
    return KERNEL(
        x,
        w.weight,
        w.scales,
        w.biases,
        template={"T": x.dtype, "S": w.scales.dtype, **numbers},
        grid=(threadgroups * SIMDGROUPS * 32, 1, 1),
        threadgroup=(SIMDGROUPS * 32, 1, 1),
        shapes=[shape],
        dtypes=[x.dtype],
    )[0]
