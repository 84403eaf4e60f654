"""Up to 16 rows times packed weights, by our own kernels: what the operations' `ours` routes of few rows are made of."""

import functools

import mlx.core as mx

from tinymlx.kernels.metal import MetalKernel
from tinymlx.ops.linear import Linear

MOST_ROWS = 16
FLOATS = (mx.float32, mx.float16, mx.bfloat16)
FORMATS = {("affine", 4): (32, 64, 128), ("affine", 8): (32, 64, 128), ("mxfp4", 4): (32,)}
"""(mode, bits) -> group sizes that the kernels take."""
SCRATCH = "threadgroup float partial[TILES * SPLITS * (OUTPUTS + 1) * M];\n  "
PLACE = "K, {N}, threadgroup_position_in_grid.x, TILES, simdgroup_index_in_threadgroup, thread_index_in_simdgroup, partial);\n"
KERNEL = MetalKernel(
    "w4_matvec",
    inputs=("x", "weight", "eps", "w", "scales", "biases", "delta", "residual"),
    outputs=("y",),
    body=f"""  {SCRATCH}w4_matvec<T, MATRIX, M, GROUP, BITS, MX, NORM, DELTA, RESIDUAL, OUTPUTS, SPLITS>(
      x, weight, eps, Packed<S>{{w, scales, biases}}, delta, residual, y, {PLACE.format(N="N")}""",
)


def w4_matvec(
    x: mx.array,
    w: Linear,
    norm: tuple[mx.array, float] | None = None,
    delta: mx.array | None = None,
    residual: mx.array | None = None,
) -> mx.array:
    """h W^T + delta + residual, where h is x, or with `norm` = (weight [K], eps) its rms_norm.

    x: [..., K] of at most 16 rows; w: [N, K] packed (`FORMATS`), its bias and adapter are left to the caller; delta, residual: [..., N] in
    x's dtype. Returns [..., N] in x's dtype. Raises ValueError for another packing, shapes that do not fit, more rows, or another dtype.
    """
    check_packed(x, w)
    shape = (*x.shape[:-1], w.weight.shape[0])
    check_like(x, shape, delta=delta, residual=residual)
    if norm is not None:
        check_norm(x, norm[0])
    if 0 in shape:
        return mx.zeros(shape, x.dtype)
    weight, eps = norm or (x, 0.0)
    return KERNEL(
        *(x, weight, constant(eps), *packed(w), x if delta is None else delta, x if residual is None else residual),
        **launch(x, w, shape[-1], NORM=norm is not None, DELTA=delta is not None, RESIDUAL=residual is not None, N=shape[-1]),
        shapes=[shape],
        dtypes=[x.dtype],
    )[0]


def geometry(rows: int, outputs: int, K: int, matrix: bool) -> tuple[int, int, int]:
    """(OUTPUTS, TILES, SPLITS) for `outputs` numbers a row: wide tiles for many, split sums where there are few.

    SPLITS, on which the order of additions depends, is the same for any number of rows.
    """
    tile, block = (16 if rows <= 16 else 32, 256) if matrix else (4, 1024)
    splits = 1
    while splits < 8 and 2 * splits * block <= K and outputs // tile * splits < 4096:
        splits *= 2
    return tile, max(4 // splits, 1), splits


def launch(x: mx.array, w: Linear, outputs: int, tiles: int | None = None, **template) -> dict:
    """What our matvec kernels share of a call. outputs: numbers a row in all; tiles: where they are not outputs / OUTPUTS, rounded up."""
    K = x.shape[-1]
    rows, (group, bits, mode) = x.size // K, w.quantization
    matrix = on_matrix_units(x)
    tile, together, splits = geometry(rows, outputs, K, matrix)
    count = -(-outputs // tile) if tiles is None else tiles
    numbers = {"MATRIX": matrix, "M": rows, "GROUP": group, "BITS": bits, "MX": mode == "mxfp4", "OUTPUTS": tile, "TILES": together, "SPLITS": splits}
    lanes = together * splits * 32
    return {
        "template": {"T": x.dtype, "S": w.scales.dtype, **numbers, "K": K, **template},
        "grid": (-(-count // together) * lanes, 1, 1),
        "threadgroup": (lanes, 1, 1),
    }


def on_matrix_units(x: mx.array) -> bool:
    """Whether tensor cores multiply: on CUDA they do it beside the unpacking, which is the bottleneck otherwise."""
    return x.dtype != mx.float32 and mx.cuda.is_available() and mx.default_device() == mx.gpu


def packed(w: Linear) -> tuple[mx.array, mx.array, mx.array]:
    return w.weight, w.scales, w.scales if w.biases is None else w.biases


@functools.lru_cache
def constant(eps: float) -> mx.array:
    return mx.array([eps] * 8, mx.float32)


def takes(x: mx.array, *weights: Linear, most_rows: int = MOST_ROWS) -> bool:
    """Whether `check_packed` passes, and nothing is left to the caller but an adapter."""
    try:
        for w in weights:
            check_packed(x, w, most_rows)
    except ValueError:
        return False
    return x.size > 0 and all(w.bias is None and (w.lora is None or w.lora.column_scale is None) for w in weights)


def check_packed(x: mx.array, w: Linear, most_rows: int = MOST_ROWS) -> None:
    """Raises ValueError unless x [..., K] can be multiplied by the packed w [N, K]."""
    quantization, K = w.quantization, x.shape[-1] if x.ndim else 0
    if quantization is None or (quantization.mode, quantization.bits) not in FORMATS:
        raise ValueError(f"w is packed as {quantization}; affine with 4 or 8 bits and mxfp4 are accepted")
    group_sizes = FORMATS[quantization.mode, quantization.bits]
    if quantization.group_size not in group_sizes or K == 0 or K % quantization.group_size:
        accepted = ", ".join(map(str, group_sizes))
        raise ValueError(f"group_size is {quantization.group_size} and K {K}; {accepted} that divide K are accepted")
    words = K * quantization.bits // 32
    if w.weight.ndim != 2 or w.weight.shape[1] != words or w.weight.dtype != mx.uint32:
        raise ValueError(f"w is {w.weight.dtype} {w.weight.shape}; x of {x.shape} needs uint32 [N, {words}]")
    scaled = (w.weight.shape[0], K // quantization.group_size)
    arrays = {"scales": w.scales} | ({} if quantization.mode == "mxfp4" else {"biases": w.biases})
    for name, array in arrays.items():
        if array is None or array.shape != scaled:
            raise ValueError(f"{name} has shape {getattr(array, 'shape', None)}; w of {w.weight.shape} needs {scaled}")
    kinds = (mx.uint8,) if quantization.mode == "mxfp4" else FLOATS
    for name, array, accepted in (("x", x, FLOATS), *((name, array, kinds) for name, array in arrays.items())):
        if array.dtype not in accepted:
            raise ValueError(f"{name} is {array.dtype}; {' or '.join(str(d).rpartition('.')[2] for d in accepted)} is accepted")
    if len({array.dtype for array in arrays.values()}) > 1:
        raise ValueError(f"scales is {w.scales.dtype} and biases {w.biases.dtype}; one dtype is accepted")
    if x.size // K > most_rows:
        raise ValueError(f"x has {x.size // K} rows; at most {most_rows} are accepted")


def check_like(x: mx.array, shape: tuple[int, ...], **arrays: mx.array | None) -> None:
    """Raises ValueError for an array that is not of x's dtype and `shape`."""
    for name, array in arrays.items():
        if array is not None and (array.shape != shape or array.dtype != x.dtype):
            raise ValueError(f"{name} is {array.dtype} {array.shape}; {x.dtype} {shape} is accepted")


def check_norm(x: mx.array, weight: mx.array) -> None:
    if weight.shape != x.shape[-1:] or weight.dtype not in FLOATS:
        raise ValueError(f"weight is {weight.dtype} {weight.shape}; floating point {x.shape[-1:]} is accepted")
