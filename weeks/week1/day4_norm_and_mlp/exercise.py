"""Day 1.4: RMSNorm and SwiGLU. Each function here replaces the product's function of the same name; the chapter is README.md beside it.

tinymlx learn check 1.4 --watch          grades this file whenever you save it
tinymlx learn run 1.4 --prompt "Hi"      answers with your functions inside the engine
"""

import mlx.core as mx

from tinymlx import ops  # the product's: ops.silu is yours as soon as yours is graded or run

HOMES = {"rms_norm": "tinymlx.ops", "silu": "tinymlx.ops", "swiglu": "tinymlx.ops"}


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """Scale each vector to unit root mean square, then by `weight`.

    >>> rms_norm(mx.array([3.0, 4.0]), mx.ones(2), 0.0)      # rms of (3, 4) is 3.5355
    array([0.848528, 1.13137], dtype=float32)

    x: [..., K], weight: [K], both of one dtype. Returns [..., K] in that dtype. The mean of squares is made in float32, eps is added
    under the root, and the scaled x is rounded to its dtype before it meets `weight`, as Hugging Face's code for Qwen3 does.
    """
    raise NotImplementedError("1.4 task 1: each vector to unit root mean square")


def silu(x: mx.array) -> mx.array:
    """x * sigmoid(x), any shape.

    >>> silu(mx.array([-20.0, -1.0, 0.0, 1.0, 20.0]))
    array([-4.12231e-08, -0.268941, 0, 0.731059, 20], dtype=float32)

    Returns x's shape and dtype. No finite x gives NaN: towards -infinity it is 0, towards infinity x.
    """
    raise NotImplementedError("1.4 task 2: x times its own sigmoid")


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """silu(gate) * up, both [..., N].

    >>> swiglu(mx.array([-20.0, 20.0]), mx.array([3.0, 3.0]))      # closed, open
    array([-1.23669e-07, 60], dtype=float32)

    Returns [..., N] in their dtype. Takes silu as `ops.silu`, so that one put in its place is used.
    """
    raise NotImplementedError("1.4 task 3: values let through by their gates")
