"""How a coarse operation finds the code that serves it.

An operation has one signature and several routes. `twin` composes `ops` and is always right; `mlx` uses MLX's own fast operations; `host` is
our C++ for a CPU; `ours` launches kernels of metal_kernels/. The first route of the chosen preference that takes the arguments runs. By default ours serves only
where `trust` has found it right and faster than `mlx` on this GPU.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import NamedTuple

import mlx.core as mx

from tinymlx import ops
from tinymlx.errors import UserError
from tinymlx.kernels import metal, trust
from tinymlx.kernels.gradient import differentiable
from tinymlx.memory.verdicts import Verdict

PREFERENCES = {
    "auto": ("host", "ours", "mlx", "twin"),  # ours only where trusted
    "ours": ("ours", "mlx", "twin"),
    "mlx": ("mlx", "twin"),
    "reference": ("twin",),
}


def _takes_anything(*args, **kwargs) -> bool:
    return True


@dataclass(frozen=True)
class Route:
    """One way to run an operation. `applies` gets the operation's arguments and says whether the route takes them."""

    run: Callable
    applies: Callable[..., bool] = _takes_anything


class Operation:
    """A coarse operation of the model: `norm_qkv(x, ...)`.

    covers: names of the fine `ops` that its routes replace. When one of them is grafted, only the twin serves.
    The gradient of `host` and `ours` is the twin's, see `gradient`.
    """

    def __init__(self, name: str, *, covers: tuple[str, ...], routes: dict[str, Route]):
        for own in routes.keys() & {"host", "ours"}:
            run = differentiable(routes[own].run, routes["twin"].run)
            routes = routes | {own: replace(routes[own], run=run)}
        self.name, self.covers, self.routes = name, covers, routes
        self.__doc__ = routes["twin"].run.__doc__
        operations[name] = self

    def __call__(self, *args, **kwargs):
        verdict, why = None, None
        for name, route in self.candidates().items():
            if not route.applies(*args, **kwargs):
                why = why or f"{name} does not take these arguments"
            elif name != "ours" or preference() != "auto":
                _served[trust.here.generation, self.name, name, why, verdict] = None
                return route.run(*args, **kwargs)
            else:
                verdict, outputs = trust.here.serve(self.name, route.run, args, kwargs)
                why = verdict.objection if verdict else "not tried yet"
                if why is None:
                    _served[trust.here.generation, self.name, name, why, verdict] = None
                    return outputs
        raise AssertionError(f"the twin of {self.name} must take any arguments")

    def candidates(self) -> dict[str, Route]:
        """Routes by name, in order of preference."""
        choice = preference()
        names = ("twin",) if _grafts.keys() & set(self.covers) else PREFERENCES[choice]
        untrusted = choice == "auto" and trust.device() is None
        return {name: self.routes[name] for name in names if name in self.routes and not (untrusted and name == "ours")}


operations: dict[str, Operation] = {}
_grafts: dict[str, Callable] = {}
_served: dict[tuple[int, str, str, str | None, Verdict | None], None] = {}


def preference() -> str:
    """TINYMLX_KERNELS, `auto` when unset."""
    choice = os.environ.get("TINYMLX_KERNELS", "auto")
    if choice not in PREFERENCES:
        raise UserError(
            f"TINYMLX_KERNELS={choice} is not one of {', '.join(PREFERENCES)}; unset it or choose one of these"
        )
    return choice


def compile_key() -> tuple:
    """What a compiled step depends on besides its inputs; MLX ignores functions replaced after tracing, so cache by this.

    It holds the grafted functions themselves: the id of one that is gone can be another's.
    """
    return preference(), frozenset(_grafts.items()), metal.overlays(), trust.here.generation


def traceable() -> bool:
    """Whether a step made of all operations may be compiled. On a CPU what is ours runs as it is called."""
    on_cpu = mx.default_device() == mx.cpu
    return not (on_cpu and any({"host", "ours"} & operation.candidates().keys() for operation in operations.values()))


def prepare(rehearse: Callable[[], None] | None = None) -> None:
    """Between two answers: what trials of our kernels have found counts from here on, and trials that are wanted start.

    rehearse: builds, without evaluating, what is coming, so that its kernels are known; then trials are waited for, at most two seconds.
    Does nothing on a CPU or under a preference other than `auto`.
    """
    if preference() == "auto" and trust.device():
        trust.here.prepare(rehearse)


class Service(NamedTuple):
    """Who has served an operation, and why ours has not (None where it has).

    Of a trial, if one was made: `error` over its bound, and `factor`, MLX's time over that of ours.
    """

    operation: str
    route: str
    why: str | None
    error: float | None
    factor: float | None


def services() -> list[Service]:
    """One for each route, reason and trial with which an operation has been called since verdicts were last taken in."""
    found = []
    for generation, operation, route, why, verdict in _served:
        if generation == trust.here.generation:
            if route != "ours":
                why = (why or _unasked()) if "ours" in operations[operation].routes else "there is no kernel of ours"
            found.append(Service(operation, route, why, *(verdict[1:3] if verdict else (None, None))))
    return found


def _unasked() -> str:
    """Why ours is no candidate."""
    if _grafts:
        return "functions are replaced"
    return "on a CPU" if preference() == "auto" else f"TINYMLX_KERNELS={preference()}"


def grafted_in(module: str) -> bool:
    """Whether a function of the module of this dotted name is replaced right now (not for `ops`)."""
    return any(name.rpartition(".")[0] == module for name in _grafts)


@contextlib.contextmanager
def graft(module: ModuleType = ops, /, **functions: Callable) -> Iterator[None]:
    """Put functions in the place of fine ops, or of another module's functions, for a while: `with graft(rms_norm=mine): ...`.

    Every coarse operation that covers one of the ops goes to its twin meanwhile. Raises AttributeError for a name that the module lacks.
    """
    originals = {name: getattr(module, name) for name in functions}
    prefix = "" if module is ops else f"{module.__name__}."
    earlier = dict(_grafts)
    try:
        for name, function in functions.items():
            setattr(module, name, function)
            _grafts[prefix + name] = function
        yield
    finally:
        for name, original in originals.items():
            setattr(module, name, original)
        _grafts.clear()
        _grafts.update(earlier)
