"""The linear layer that `mlx` routes share."""

import mlx.core as mx

from tinymlx import ops
from tinymlx.ops.linear import Linear, add_lora

# On a CPU MLX's quantized_matmul costs the same for every row, while unpacking once and calling BLAS costs it once.
# Measured on 2 x86 cores with OpenBLAS: unpacking wins from about this many rows.
ROWS_WORTH_UNPACKING_ON_CPU = 16


def linear(x: mx.array, w: Linear) -> mx.array:
    """x: [..., K] -> [..., N]. Same as `ops.linear`, by MLX's own quantised and fused operations."""
    if w.quantization is None:
        if w.lora is None and w.bias is not None:
            return mx.addmm(w.bias, x, w.weight.T)
        y = x @ w.weight.T
    elif x.size >= ROWS_WORTH_UNPACKING_ON_CPU * x.shape[-1] and mx.default_device() == mx.cpu:
        y = x @ ops.dequantize(w).astype(x.dtype).T
    else:
        group_size, bits, mode = w.quantization
        y = mx.quantized_matmul(x, w.weight, w.scales, w.biases, transpose=True, group_size=group_size, bits=bits, mode=mode)
        y = y.astype(x.dtype)
    if w.lora is not None:
        y = add_lora(y, x, w.lora)
    return y if w.bias is None else y + w.bias
