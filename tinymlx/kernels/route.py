"""How a coarse operation finds the code that serves it.

An operation has one signature and several routes. `twin` composes `ops` and is always right; `mlx` uses MLX's own fast operations. The
first route of the chosen preference that takes the arguments runs.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

from tinymlx import ops
from tinymlx.errors import UserError
from tinymlx.kernels import metal

# In order of preference. `auto` and `mlx` coincide until the kernels of metal_kernels/ bring routes of their own.
PREFERENCES = {"auto": ("mlx", "twin"), "mlx": ("mlx", "twin"), "reference": ("twin",)}


def _takes_anything(*args, **kwargs) -> bool:
    return True


@dataclass(frozen=True)
class Route:
    """One way to run an operation. `applies` gets the operation's arguments and says whether the route takes them."""

    run: Callable
    applies: Callable[..., bool] = _takes_anything
    traceable: bool = True  # may stand inside mx.compile


class Operation:
    """A coarse operation of the model: `norm_qkv(x, ...)`.

    covers: names of the fine `ops` that its routes replace. When one of them is grafted, only the twin serves.
    """

    def __init__(self, name: str, *, covers: tuple[str, ...], routes: dict[str, Route]):
        self.name, self.covers, self.routes = name, covers, routes
        self.__doc__ = routes["twin"].run.__doc__
        _operations[name] = self

    def __call__(self, *args, **kwargs):
        for route in self.candidates():
            if route.applies(*args, **kwargs):
                return route.run(*args, **kwargs)
        raise AssertionError(f"the twin of {self.name} must take any arguments")

    def candidates(self) -> list[Route]:
        names = ("twin",) if _grafts.keys() & set(self.covers) else PREFERENCES[preference()]
        return [self.routes[name] for name in names if name in self.routes]


_operations: dict[str, Operation] = {}
_grafts: dict[str, Callable] = {}


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
    return preference(), frozenset(_grafts.items()), metal.overlays()


def traceable() -> bool:
    """Whether a step made of all operations may be compiled."""
    return all(route.traceable for operation in _operations.values() for route in operation.candidates())


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
