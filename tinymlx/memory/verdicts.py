"""What trials of our kernels found on this machine, kept in a file private to the user."""

import json
import math
import os
from pathlib import Path
from typing import NamedTuple

from tinymlx.memory import measured

MOST_MACHINES = 8  # device, versions and kernels' texts together
MOST_VERDICTS = 1000  # of each

OUTCOMES = ("right", "wrong", "failed", "unfit")


class Verdict(NamedTuple):
    """error: the largest over its bound, right up to 1; factor: time of MLX's route over that of ours."""

    outcome: str  # "right", "wrong", "failed" (it raised, crashed or hung), "unfit" (it could not be tried)
    error: float | None = None
    factor: float | None = None
    detail: str = ""

    @classmethod
    def of_error(cls, outcome: str, error: Exception) -> "Verdict":
        return cls(outcome, detail=" ".join(f"{type(error).__name__}: {error}".split())[:300])

    @property
    def objection(self) -> str | None:
        """Why ours should not serve; None where it should."""
        if self.outcome == "right":
            return None if self.factor > 1 else f"slower here: {self.factor:.2f} times as fast as MLX"
        return f"{self.outcome} here: {self.detail}"


def load(machine: str) -> dict[str, Verdict]:
    """Verdicts by signature; {} where there are none, or the file is damaged or somebody else's."""
    kept = _stored().get(machine)
    found = {key: _verdict(values) for key, values in kept.items()} if isinstance(kept, dict) else {}
    return {key: verdict for key, verdict in found.items() if verdict}


def save(machine: str, signature: str, verdict: Verdict) -> None:
    """Add a verdict. Best effort: without it the next start tries again."""
    try:
        stored = _stored()
        kept = stored.pop(machine, None)
        kept = (kept if isinstance(kept, dict) else {}) | {signature: verdict}
        stored[machine] = dict(list(kept.items())[-MOST_VERDICTS:])
        measured.write_private(file(), json.dumps(dict(list(stored.items())[-MOST_MACHINES:])))
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        pass


def count() -> int:
    """Verdicts kept, of all devices and versions."""
    return sum(len(kept) for kept in _stored().values() if isinstance(kept, dict))


def file() -> Path:
    return measured.file("kernels.json")


def _stored() -> dict:
    try:
        path = file()
        stat = path.stat()
        if stat.st_uid != os.getuid() or stat.st_mode & 0o022:
            return {}
        content = json.loads(path.read_text())
    except (OSError, ValueError, RuntimeError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _verdict(values: object) -> Verdict | None:
    if not isinstance(values, list) or len(values) != 4:
        return None
    outcome, error, factor, detail = values
    numbers = [n for n in (error, factor) if n is not None]
    if not all(isinstance(n, float | int) and math.isfinite(n) for n in numbers) or not isinstance(detail, str):
        return None
    if outcome not in OUTCOMES or (outcome == "right" and factor is None):
        return None
    return Verdict(*values)
