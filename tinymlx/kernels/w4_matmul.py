"""Many rows times a packed weight, by our own kernel: products of matrix fragments."""

import mlx.core as mx

from tinymlx.kernels.metal import MetalKernel
from tinymlx.kernels.w4_matvec import check_packed, packed
from tinymlx.ops.linear import Linear, add_lora

SIMDGROUPS = 4
BLOCK = 128  # numbers of k that a threadgroup's rows share at a time
KERNEL = MetalKernel(
    "w4_matmul",
    inputs=("x", "w", "scales", "biases"),
    outputs=("y",),
    body="""  threadgroup Eight<T> shared[ROWS * 17];
  w4_matmul<T, Y, GROUP, BITS, MX, ROWS, COLUMNS, SIMDGROUPS, SPLITS>(x, Packed<S>{w, scales, biases}, y, M, N, K,
      threadgroup_position_in_grid, simdgroup_index_in_threadgroup, thread_index_in_simdgroup, shared);
""",
)


def w4_matmul(x: mx.array, w: Linear) -> mx.array:
    """x: [..., K] of any number of rows; w: [N, K] packed as `w4_matvec` takes it. Returns x W^T [..., N] in x's dtype, without bias or adapter.

    Raises ValueError for another packing, shapes that do not fit, or another dtype; on CUDA also for float32, which tensor cores round.
    """
    check_packed(x, w)
    if x.dtype == mx.float32 and mx.cuda.is_available() and mx.default_device() == mx.gpu:
        raise ValueError("x is float32; float16 or bfloat16 is accepted on CUDA")
    K, N = x.shape[-1], w.weight.shape[0]
    M, shape = x.size // K, (*x.shape[:-1], N)
    if 0 in shape:
        return mx.zeros(shape, x.dtype)
    rows, columns, splits = geometry(M, N, K)
    group, bits, mode = w.quantization
    numbers = {
        "GROUP": group,
        "BITS": bits,
        "MX": mode == "mxfp4",
        "ROWS": rows,
        "COLUMNS": columns,
        "SIMDGROUPS": SIMDGROUPS,
        "SPLITS": splits,
    }
    (y,) = KERNEL(
        *(x, *packed(w)),
        template={
            "T": x.dtype,
            "Y": x.dtype if splits == 1 else mx.float32,
            "S": w.scales.dtype,
            **numbers,
            "M": M,
            "N": N,
            "K": K,
        },
        grid=(-(-N // (SIMDGROUPS * columns * 8)) * SIMDGROUPS * 32, -(-M // rows), splits),
        threadgroup=(SIMDGROUPS * 32, 1, 1),
        shapes=[shape if splits == 1 else (splits, M, N)],
        dtypes=[x.dtype if splits == 1 else mx.float32],
    )
    return y if splits == 1 else y.sum(axis=0).astype(x.dtype).reshape(shape)


def w4_linear(x: mx.array, w: Linear) -> mx.array:
    """As `w4_matmul`, with the adapter of w."""
    y = w4_matmul(x, w)
    return y if w.lora is None else add_lora(y, x, w.lora)


def geometry(M: int, N: int, K: int) -> tuple[int, int, int]:
    """(ROWS, COLUMNS, SPLITS). SPLITS, on which the order of additions depends, is the same for any number of rows."""
    columns, splits = 2, 1
    while splits < 16 and -(-N // (SIMDGROUPS * columns * 8)) * splits < 512 and K // BLOCK >= 4 * 2 * splits:
        splits *= 2
    return (16 if M <= 16 else 32), columns, splits
