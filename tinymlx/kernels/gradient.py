"""Gradients of our kernels: forwards the kernel, backwards its twin, computed again.

A function that brings its own gradient is a node of MLX's graph: 8 us to make, 4 us in each run of a compiled step (MLX 0.32.4, CPU). Only
what runs under `gradients()` has it. Elsewhere a kernel that is differentiated raises.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx

_wanted = contextvars.ContextVar("gradients", default=False)


@contextlib.contextmanager
def gradients() -> Iterator[None]:
    """Within it our kernels can be differentiated: `with gradients(): mx.grad(loss)(weights)`.

    What is compiled with its gradient needs it where it is first called, and may be called without it from then on.
    """
    token = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(token)


def differentiable(run: Callable, twin: Callable) -> Callable:
    """`run`, which under `gradients()` has the gradient of `twin`: the same function of the same arguments in plain array mathematics.

    Gradients reach all arrays of floating point among the positional arguments, and in tuples of these (a `Linear`); packed weights and
    other integers are constants. Both return an array, or a tuple of arrays.
    """

    @functools.wraps(run)
    def call(*args, **kwargs):
        return _recorded(run, twin, args, kwargs) if _wanted.get() else run(*args, **kwargs)

    return call


def _recorded(run: Callable, twin: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    made: list[bool] = []  # which outputs there are: one that nobody asked for may be None

    def forwards(*floats):
        outputs = run(*_put(args, iter(floats)), **kwargs)
        made[:] = [y is not None for y in _tuple(outputs)]
        return [y for y in outputs if y is not None] if isinstance(outputs, (tuple, list)) else outputs

    function = mx.custom_function(forwards)

    @function.vjp
    def backwards(primals, cotangents, outputs):
        outputs = _tuple(outputs)

        def again(*floats):
            wanted = [y for y, there in zip(_tuple(twin(*_put(args, iter(floats)), **kwargs)), made) if there]
            return [y.astype(output.dtype) for y, output in zip(wanted, outputs, strict=True)]

        return tuple(mx.vjp(again, list(_tuple(primals)), list(_tuple(cotangents)))[1])

    @function.jvp
    def along(primals, tangents):
        raise NotImplementedError("our kernels have no forward-mode derivative: use TINYMLX_KERNELS=mlx, or mx.grad")

    outputs = function(*_floats(args))
    if not isinstance(outputs, (tuple, list)):
        return outputs
    left = iter(outputs)
    return tuple(next(left) if there else None for there in made)


def refusing(run: Callable, name: str, inputs: list[mx.array]) -> Any:
    """run(), whose outputs are no function of `inputs` for MLX: a gradient through them would be zero in silence, and raises instead."""
    function = mx.custom_function(lambda *_: run())

    def refuse(*_):
        raise NotImplementedError(
            f"{name} has no gradient of its own: differentiate its operation within `gradients()`"
        )

    function.vjp(refuse)
    function.jvp(refuse)
    return function(*inputs)


def _tuple(arrays: Any) -> tuple:
    return tuple(arrays) if isinstance(arrays, (tuple, list)) else (arrays,)


def _is_float(x: Any) -> bool:
    return isinstance(x, mx.array) and mx.issubdtype(x.dtype, mx.floating)


def _floats(tree: Any) -> Iterator[mx.array]:
    if _is_float(tree):
        yield tree
    elif isinstance(tree, tuple):
        for part in tree:
            yield from _floats(part)


def _put(tree: Any, floats: Iterator[mx.array]) -> Any:
    """The tree with its arrays of floating point replaced one after another."""
    if _is_float(tree):
        return next(floats)
    if not isinstance(tree, tuple):
        return tree
    parts = [_put(part, floats) for part in tree]
    return tree._make(parts) if hasattr(tree, "_make") else tuple(parts)
