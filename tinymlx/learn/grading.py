"""What a test of the course demands of a result, in a form that can be shown to whoever wrote it."""

import mlx.core as mx
import numpy as np

_ROUNDOFF = {mx.float32: 2.0**-24, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}
_SHOWN = 6  # significant digits


class Wrong(AssertionError):
    """A result that is not the right one. The arguments are kept for the verdict."""

    def __init__(self, what: str, *, expected: str = "", got: str = "", at: str = "", note: str = ""):
        self.facts = {"what": what, "expected": expected, "got": got, "at": at, "note": note}
        super().__init__(
            what + "".join(f"\n  {key}: {value}" for key, value in self.facts.items() if value and key != "what")
        )


def roundoff(dtype: mx.Dtype) -> float:
    """Half the distance from 1 to the next number: what one rounding costs at most, relative to the result. 2^-24 for float32."""
    return _ROUNDOFF[dtype]


def to_float64(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def assert_close(
    got, want: np.ndarray, bound: float | np.ndarray, *, dtype: mx.Dtype | None = None, what: str = "result"
) -> None:
    """Demands an MLX array of want's shape, of `dtype`, within `bound` (absolute, broadcast) of `want` everywhere.

    want: float64, from an independent computation. NaN is never right; infinities must be the same. Raises Wrong.
    """
    _assert_array(got, want.shape, dtype, what)
    values = to_float64(got)
    with np.errstate(invalid="ignore"):
        fits = (np.abs(values - want) <= bound) | (values == want)
    if fits.all():
        return
    index = tuple(int(i) for i in np.argwhere(~fits)[0])
    limit = float(np.broadcast_to(bound, want.shape)[index])
    raise Wrong(
        f"{what}: {int((~fits).sum())} of {want.size} values differ by more than {limit:.2g}",
        expected=f"{want[index]:.{_SHOWN}g}",
        got=f"{values[index]:.{_SHOWN}g}",
        at=f"{list(index)} of shape {list(want.shape)}",
    )


def assert_same(got, want, *, what: str = "result") -> None:
    """Demands equal values: of integer or bool arrays (NumPy's or MLX's), lists, dicts, text. Raises Wrong with the first difference."""
    if isinstance(want, np.ndarray):
        values = np.array(got) if isinstance(got, mx.array | np.ndarray | list | tuple) else None
        if values is None or values.shape != want.shape:
            shape = type(got).__name__ if values is None else f"shape {list(values.shape)}"
            raise Wrong(f"{what} has another shape", expected=f"shape {list(want.shape)}", got=shape)
        if (values == want).all():
            return
        index = tuple(int(i) for i in np.argwhere(values != want)[0])
        count = int((values != want).sum())
        raise Wrong(
            f"{what}: {count} of {want.size} values differ",
            expected=str(want[index]),
            got=str(values[index]),
            at=f"{list(index)} of shape {list(want.shape)}",
        )
    if got == want:
        return
    at = ""
    if isinstance(want, list | tuple) and isinstance(got, list | tuple):
        places = [i for i, (a, b) in enumerate(zip(got, want)) if a != b]
        index = places[0] if places else min(len(got), len(want))
        at = f"[{index}]" if places else f"lengths {len(got)} and {len(want)}"
    raise Wrong(f"{what} is another one", expected=_short(want), got=_short(got), at=at)


def assert_true(holds, what: str, *, expected: str = "", got: str = "") -> None:
    """Demands that `holds`; says `what` otherwise."""
    if not holds:
        raise Wrong(what, expected=expected, got=got)


def assert_bytes(moved: int, least: int, most: float, what: str) -> None:
    """Demands that at most `most` times the `least` bytes are moved: `subject.traffic["w"].read` of a kernel. Raises Wrong."""
    if moved > most * least:
        raise Wrong(
            f"{what}: {moved / least:.4g} times the bytes that are needed, more than the {most:.4g} allowed",
            expected=f"at most {most * least:.0f} bytes",
            got=f"{moved} bytes",
        )


def unpack(got, count: int, what: str) -> tuple:
    """The `count` values that a function returned. An array would unpack along its first axis without a word: raises Wrong."""
    if not isinstance(got, tuple | list) or len(got) != count:
        found = f"a tuple of {len(got)}" if isinstance(got, tuple | list) else type(got).__name__
        raise Wrong(f"{what} must be returned as a tuple", expected=f"a tuple of {count}", got=found)
    return tuple(got)


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 400 else text[:397] + "..."


def _assert_array(got, shape: tuple[int, ...], dtype: mx.Dtype | None, what: str) -> None:
    if not isinstance(got, mx.array):
        raise Wrong(f"{what} is no MLX array", expected=f"mx.array of shape {list(shape)}", got=type(got).__name__)
    if tuple(got.shape) != tuple(shape):
        raise Wrong(f"{what} has another shape", expected=f"shape {list(shape)}", got=f"shape {list(got.shape)}")
    if dtype is not None and got.dtype != dtype:
        raise Wrong(f"{what} has another dtype", expected=str(dtype), got=str(got.dtype))
