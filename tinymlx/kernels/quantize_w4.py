"""mx.quantize to 4 bits by our own kernel."""

import mlx.core as mx

from tinymlx.kernels.metal import MetalKernel

LANES = 256
KERNEL = MetalKernel(
    "quantize_w4",
    inputs=("w", "words"),
    outputs=("packed", "scales", "biases"),
    body=f"""  quantize_w4<T, GROUP, ON_CPU>(
      w, packed, scales, biases, words[0], threadgroup_position_in_grid.x * {LANES} + thread_index_in_threadgroup);
""",
)


def quantize_w4(w: mx.array, group_size: int = 64) -> tuple[mx.array, mx.array, mx.array]:
    """w: [N, K]. Returns packed [N, K / 8] uint32, scales and biases [N, K / group_size] in w's dtype, as mx.quantize does on this device.

    Raises ValueError for a dtype that is not float32, float16 or bfloat16, another group size than 32, 64 or 128, or one that K is no multiple of.
    """
    if w.dtype not in (mx.float32, mx.float16, mx.bfloat16):
        raise ValueError(f"w is {w.dtype}; float32, float16 and bfloat16 are accepted")
    if not isinstance(group_size, int) or group_size not in (32, 64, 128):
        raise ValueError(f"group_size is {group_size}; 32, 64 and 128 are accepted")
    if w.ndim != 2 or w.shape[1] % group_size:
        raise ValueError(f"w has shape {w.shape}; [N, K] with K a multiple of {group_size} is accepted")
    N, K = w.shape
    shapes, dtypes = [(N, K // 8), (N, K // group_size), (N, K // group_size)], [mx.uint32, w.dtype, w.dtype]
    if w.size == 0:
        return tuple(map(mx.zeros, shapes, dtypes))
    words = w.size // 8
    return tuple(
        KERNEL(
            w,
            mx.array([words], mx.uint32),
            template={"T": w.dtype, "GROUP": group_size, "ON_CPU": mx.default_device() == mx.cpu},
            grid=(-(-words // LANES) * LANES, 1, 1),
            threadgroup=(LANES, 1, 1),
            shapes=shapes,
            dtypes=dtypes,
        )
    )
