"""Where the kernels and the chapters lie: inside an installed package, or beside `tinymlx/` in a checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def metal_kernels() -> Path:
    """The folder with the `.metal` files."""
    return _folder("metal_kernels")


def weeks() -> Path:
    """The folder with the chapters."""
    return _folder("weeks")


def _folder(name: str) -> Path:
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
