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


def takes(tokens: mx.array, table: Linear, dtype: mx.Dtype) -> bool:
    packing = table.quantization
    return (
        packing is not None
        and packing.group_size in w4_matvec.FORMATS.get((packing.mode, packing.bits), ())
        and table.weight.ndim == 2
        and dtype in w4_matvec.FLOATS
    )


def ours(tokens: mx.array, table: Linear, dtype: mx.Dtype) -> mx.array:
    """Like the twin, but rounded once, to `dtype`. Raises ValueError for a table that `takes` does not take."""
    if not takes(tokens, table, dtype):
        raise ValueError(
            f"table is packed as {table.quantization}, dtype is {dtype}; affine of 4 or 8 bits or mxfp4, to floating point, is accepted"
        )
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
