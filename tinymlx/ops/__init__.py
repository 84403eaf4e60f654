"""Readable array mathematics: what a learner writes and a test trusts.

No dispatch, no back end, no cleverness. Kernels' twins reach these functions as attributes of this package (`ops.rms_norm`), so that
another function can be grafted in. Letters in shapes: B rows, L new tokens a row, T keys, H query heads, G key/value heads,
D head size, K features in, N features out, V vocabulary, E experts.
"""

from tinymlx.ops.attention import (
    attention_mask,
    attention_scores,
    causal_mask,
    gather_pages,
    grouped_query_attention,
    paged_attention,
    scaled_dot_product_attention,
    softmax,
)
from tinymlx.ops.embedding import embedding
from tinymlx.ops.linear import Linear, Lora, Quantization, linear
from tinymlx.ops.mlp import mixture_of_experts, silu, swiglu
from tinymlx.ops.norm import rms_norm
from tinymlx.ops.quantize import dequantize, pack, quantize, unpack
from tinymlx.ops.rope import rope, rope_frequencies, rope_periods, yarn_frequencies

__all__ = [
    "Linear",
    "Lora",
    "Quantization",
    "attention_mask",
    "attention_scores",
    "causal_mask",
    "dequantize",
    "embedding",
    "gather_pages",
    "grouped_query_attention",
    "linear",
    "mixture_of_experts",
    "pack",
    "paged_attention",
    "quantize",
    "rms_norm",
    "rope",
    "rope_frequencies",
    "rope_periods",
    "scaled_dot_product_attention",
    "silu",
    "softmax",
    "swiglu",
    "unpack",
    "yarn_frequencies",
]
