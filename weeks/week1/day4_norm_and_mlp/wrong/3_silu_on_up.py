"""The other half gets the silu: an exchange of gate_proj and up_proj.

caught by: TestTask3Swiglu::test_a_closed_gate
"""

import mlx.core as mx

from tinymlx import ops


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    return gate * ops.silu(up)
