"""embed: token ids to vectors."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.kernels import linear_mlx, w4_matvec
from tinymlx.kernels.metal import MetalKernel
from tinymlx.kernels.route import Operation, Route
from tinymlx.ops.linear import Linear

KERNEL = MetalKernel(
    "embed_w4",
    inputs=("tokens", "w", "scales", "biases"),
    outputs=("y",),
    body="""  embed_w4<T, GROUP, BITS, MX, LANES>(
      tokens, Packed<S>{w, scales, biases}, y, K, V, threadgroup_position_in_grid.x, thread_index_in_threadgroup);
""",
)


def twin(tokens: mx.array, table: Linear, dtype: mx.Dtype) -> mx.array:
    """tokens: [B, L]; table: [V, K]. Returns [B, L, K] in `dtype`."""
    return ops.embedding(tokens, table).astype(dtype)


def mlx(tokens: mx.array, table: Linear, dtype: mx.Dtype) -> mx.array:
    packed, scales, biases = (
        part if part is None else part[tokens] for part in (table.weight, table.scales, table.biases)
    )
    rows = Linear(packed, None, scales, biases, table.quantization)
    return (packed if scales is None else linear_mlx.dense(rows)).astype(dtype)


def check(tokens: mx.array, table: Linear, dtype: mx.Dtype) -> None:
    """Raises ValueError for what the kernel does not take."""
    w4_matvec.check_weight(table)
    if dtype not in w4_matvec.FLOATS:
        raise ValueError(f"dtype is {dtype}; float32, float16 or bfloat16 is accepted")
    if not mx.issubdtype(tokens.dtype, mx.integer):
        raise ValueError(f"tokens is {tokens.dtype}; integers are accepted")
    if table.weight.shape[0] == 0:
        raise ValueError("table has no rows")


def takes(tokens: mx.array, table: Linear, dtype: mx.Dtype) -> bool:
    try:
        check(tokens, table, dtype)
    except ValueError:
        return False
    return True


def ours(tokens: mx.array, table: Linear, dtype: mx.Dtype) -> mx.array:
    """Like the twin, but rounded once, to `dtype`. Raises ValueError for another packing, arrays that do not fit, or another dtype."""
    check(tokens, table, dtype)
    group_size, bits, mode = table.quantization
    V, words = table.weight.shape
    lanes, K = min(-(-words // 32) * 32, 256), words * 32 // bits
    if tokens.size == 0:
        return mx.zeros((*tokens.shape, K), dtype)
    numbers = {"GROUP": group_size, "BITS": bits, "MX": mode == "mxfp4", "LANES": lanes, "K": K, "V": V}
    return KERNEL(
        tokens,
        *w4_matvec.packed(table),
        template={"T": dtype, "S": table.scales.dtype, **numbers},
        grid=(tokens.size * lanes, 1, 1),
        threadgroup=(lanes, 1, 1),
        shapes=[(*tokens.shape, K)],
        dtypes=[dtype],
    )[0]


# All three touch no more than the rows asked for; ours is one launch.
embed = Operation(
    "embed",
    covers=("embedding", "dequantize", "unpack"),
    routes={"ours": Route(ours, takes), "mlx": Route(mlx), "twin": Route(twin)},
)
