"""What `tinymlx bench` measured on this machine, kept in a file private to the user."""

import json
import math
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path

KEYS = (
    "read_gb_s",
    "copy_gb_s",
    "scale_gb_s",
    "matmul_tflop_s",
    "matvec_4bit_gb_s",
    "matvec_8bit_gb_s",
    "matvec_dense_gb_s",
)


def load(fingerprint: str) -> dict[str, float]:
    """Measurements of the machine that `fingerprint` names, {} if there are none. Keys are KEYS, or fewer."""
    stored = _stored().get(fingerprint)
    return {key: float(stored[key]) for key in KEYS if _is_rate(stored.get(key))} if isinstance(stored, dict) else {}


def save(fingerprint: str, measured: Mapping[str, float]) -> Path:
    """Keep `measured`; returns the file. Raises OSError where the user's cache folder cannot be written."""
    content = _stored() | {fingerprint: {key: measured[key] for key in KEYS if key in measured}}
    return write_private(file(), json.dumps(content, indent=1))


def write_private(path: Path, content: str) -> Path:
    """Write a file that only the user can read, whole or not at all. Returns its path. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mode 0600
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(content)
        os.replace(partial, path)  # whole, so that no reader sees half
    except OSError:
        os.unlink(partial)
        raise
    return path


def file(name: str = "bench.json") -> Path:
    """Where the user's cache folder keeps `name`. Raises RuntimeError where there is no home folder."""
    home = Path.home() / ("Library/Caches" if platform.system() == "Darwin" else ".cache")
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification ignores a relative base.
    return (Path(base) if os.path.isabs(base) else home) / "tinymlx" / name


def _stored() -> dict:
    try:
        content = json.loads(file().read_text())
    except (OSError, ValueError, RuntimeError):  # never measured, damaged, or no home: there is nothing to go by
        return {}
    return content if isinstance(content, dict) else {}


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
