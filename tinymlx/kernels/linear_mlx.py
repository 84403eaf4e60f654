"""The linear layer that `mlx` routes share."""

import mlx.core as mx

from tinymlx.ops.linear import Linear, add_lora

# From so many rows on, unpacking a weight once and multiplying densely beats MLX's quantized_matmul where that re-reads the weight for
# every few rows: on a CPU (one thread, no BLAS: crossing measured at 12 to 20 rows) and on CUDA (crossing near 200 rows on an H200,
# but its first call compiles for up to a minute; the dense product is ready at once). On Metal quantized_matmul keeps its own.
ROWS_WORTH_UNPACKING = 16


def _unpacks(x: mx.array) -> bool:
    return x.size >= ROWS_WORTH_UNPACKING * x.shape[-1] and not mx.metal.is_available()


def dense(w: Linear) -> mx.array:
    """Same as `ops.dequantize`, of what is packed."""
    group_size, bits, mode = w.quantization
    return mx.dequantize(w.weight, w.scales, w.biases, group_size=group_size, bits=bits, mode=mode)


def linear(x: mx.array, w: Linear) -> mx.array:
    """x: [..., K] -> [..., N]. Same as `ops.linear`, by MLX's own quantised and fused operations."""
    if w.quantization is None:
        if w.lora is None and w.bias is not None:
            return mx.addmm(w.bias, x, w.weight.T)
        y = x @ w.weight.T
    elif _unpacks(x):
        y = x @ dense(w).astype(x.dtype).T
    else:
        group_size, bits, mode = w.quantization
        y = mx.quantized_matmul(
            x, w.weight, w.scales, w.biases, transpose=True, group_size=group_size, bits=bits, mode=mode
        )
        y = y.astype(x.dtype)
    if w.lora is not None:
        y = add_lora(y, x, w.lora)
    return y if w.bias is None else y + w.bias
