"""An operation whose own kernel does what its last argument says, and a child process that knows it."""

import os
import sys
import time
from pathlib import Path

import mlx.core as mx

from tinymlx.kernels.route import Operation, Route, operations


def command() -> list[str]:
    """A child for trials that knows the operation."""
    folder = str(Path(__file__).parent)
    return [
        sys.executable,
        "-c",
        f"import sys; sys.path.append({folder!r}); import fake_operation; fake_operation.child()",
    ]


def child() -> None:
    from tinymlx.kernels import trial

    operations["fake"] = fake
    trial.main()


def twin(x, w, kind):
    return x @ w.weight.T


def mlx(x, w, kind):
    """As slow as 9 products."""
    for _ in range(0 if kind == "slow" else 8):
        x = mx.depends([x], [x @ w.weight.T])[0]
    return x @ w.weight.T


def ours(x, w, kind):
    if kind == "crash":
        os.abort()
    if kind == "hang":
        time.sleep(600)
    if kind == "raise":
        raise ValueError("no such\nlaunch")
    if kind == "wrong" or kind == "wrong when large" and x.shape[-1] > 1000:
        return x @ w.weight.T * 1.1
    return mlx(x, w, "right" if kind == "slow" else "slow")


fake = Operation("fake", covers=(), routes={"twin": Route(twin), "mlx": Route(mlx), "ours": Route(ours)})
del operations["fake"]  # tests that go through all operations do not know it
