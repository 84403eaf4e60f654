"""The coarse operations that models are made of, one a file, each with its routes."""

from tinymlx.kernels.attend import attend
from tinymlx.kernels.embed import embed
from tinymlx.kernels.experts import norm_experts
from tinymlx.kernels.head import head
from tinymlx.kernels.linear_residual import linear_residual
from tinymlx.kernels.norm_gate_up import norm_gate_up
from tinymlx.kernels.norm_qkv import norm_qkv
from tinymlx.kernels.qk_norm_rope import qk_norm_rope
from tinymlx.kernels.route import compile_key, graft, grafted_in, prepare, services, traceable

__all__ = [
    "attend",
    "compile_key",
    "embed",
    "graft",
    "grafted_in",
    "head",
    "linear_residual",
    "norm_experts",
    "norm_gate_up",
    "norm_qkv",
    "prepare",
    "qk_norm_rope",
    "services",
    "traceable",
]
