"""Whether our kernels may serve on this GPU: what trials found, which ones are wanted, and the child processes that make them.

    an unknown signature -> wanted -> a trial in a child (`trial`), while MLX serves -> verdict, kept (`memory.verdicts`) -> next answer

Nothing of this happens on a CPU, where our kernels are for checking.
"""

import atexit
import contextlib
import functools
import hashlib
import json
import os
import platform
import queue
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from tinymlx import paths
from tinymlx.kernels import metal, signature
from tinymlx.memory import verdicts
from tinymlx.memory.verdicts import Verdict

WAIT_S = 2.0  # before the first token
TRIAL_S, ALL_S = 20.0, 60.0  # a trial, and all that start together
MOST_WANTED = 256
A_CHILD = 32  # signatures that fit into a pipe


def device() -> str | None:
    """The GPU that MLX computes on; None on a CPU."""
    return None if mx.default_device() == mx.cpu else mx.device_info().get("device_name", "a GPU")


@functools.cache
def sources() -> str:
    """A hash of all texts that make our kernels."""
    folders = (
        paths.metal_kernels().rglob("*.metal"),
        Path(__file__).parent.glob("*.py"),
        Path(__file__).parent.glob("*.h"),
    )
    texts = b"\0".join(file.read_bytes() for files in folders for file in sorted(files))
    return hashlib.sha256(texts).hexdigest()[:16]


def machine() -> str:
    """What verdicts hold for."""
    return f"{device()} · {platform.platform()} · MLX {mx.__version__} · kernels {sources()}"


def command() -> list[str]:
    """A child for trials: this Python and this tinymlx, nothing from the current folder, nothing that hides Python's own modules."""
    here = str(Path(__file__).parents[2])
    find = f"import sys; sys.path.insert(0, {here!r}); import tinymlx; sys.path.append(sys.path.pop(0))"
    return [sys.executable or "", "-P", "-c", f"{find}; from tinymlx.kernels import trial; trial.main()"]


class Trials(threading.Thread):
    """Tries signatures one after another and hands (signature, verdict) to `report`; a child that a kernel has ended is replaced."""

    def __init__(self, wanted: Sequence[str], report: Callable[[tuple[str, Verdict]], None]):
        super().__init__(daemon=True, name="trials of kernels")
        self.wanted, self.report = list(wanted), report
        self.child: subprocess.Popen | None = None
        self.stopped = False

    def run(self) -> None:
        self.deadline = time.monotonic() + ALL_S
        todo = self.wanted
        while todo and not self.stopped and time.monotonic() < self.deadline:
            settled = self._settle(todo[:A_CHILD])
            if settled == 0:
                return
            todo = todo[settled:]

    def stop(self) -> None:
        self.stopped = True
        if child := self.child:
            child.kill()

    def _settle(self, wanted: list[str]) -> int:
        """Try these in one child. Returns how many of them have been decided; 0 where no child can run."""
        index, state, ending = 0, None, "ended its process"
        try:
            with self._child_process() as child:
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.write("".join(line + "\n" for line in wanted).encode())
                    child.stdin.close()
                try:
                    for index, state in self._lines(child):
                        if isinstance(state, list):
                            self.report((wanted[index], Verdict(*state)))
                except TimeoutError:
                    ending = f"took more than {TRIAL_S:.0f} s"
        except (OSError, ValueError):  # no memory or no processes left, or a child that writes nonsense
            return 0
        if state is None or self.stopped or time.monotonic() >= self.deadline:
            return 0
        if not isinstance(state, list):
            outcome = "failed" if state == "ours" else "unfit"
            self.report((wanted[index], Verdict(outcome, detail=f"its trial {ending}")))
        return index + 1

    @contextlib.contextmanager
    def _child_process(self) -> Iterator[subprocess.Popen]:
        """A child, gone at the end."""
        environment = os.environ | {"MLX_ENABLE_TF32": "0"}  # the twin is the truth
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.child = child = subprocess.Popen(command(), **pipes, env=environment, start_new_session=True)
        try:
            if self.stopped:
                child.kill()
            yield child
        finally:
            child.kill()
            child.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a GPU can hold a process back
                child.wait(5)
            self.child = None

    def _lines(self, child: subprocess.Popen) -> Iterator[list]:
        """What a child writes until it ends. Raises TimeoutError when it takes too long over a trial."""
        buffer, limit = b"", self.deadline  # starting is no part of a trial
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, min(limit, self.deadline) - time.monotonic())):
                piece = os.read(child.stdout.fileno(), 1 << 16)
                if not piece:
                    return
                *lines, buffer = (buffer + piece).split(b"\n")
                for line in lines:
                    index, state = json.loads(line)
                    limit = time.monotonic() + TRIAL_S
                    yield index, state
        raise TimeoutError


def _keep(machine: str, arrived: queue.SimpleQueue, found: tuple[str, Verdict]) -> None:
    verdicts.save(machine, *found)
    arrived.put(found)


def _line(call: tuple) -> str:
    """A call's operation and signature as a child reads them and as verdicts are kept by them."""
    return json.dumps(call, default=str)


class Trust:
    """Verdicts on this machine, and trials for what has none. Used by one thread at a time."""

    def __init__(self) -> None:
        self.generation = 0
        """Grows with every verdict taken in: compiled steps depend on it."""
        self._known: dict[str, Verdict] | None = None
        self._by_call: dict[tuple, Verdict | None] = {}
        self._wanted: dict[str, None] = {}
        self._arrived: queue.SimpleQueue[tuple[str, Verdict]] = queue.SimpleQueue()
        self._trials: Trials | None = None
        self._warned: set[str] = set()

    def verdict(self, operation: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Verdict | None:
        """What is known of our kernel for such arguments; None, and a trial is wanted, if nothing is."""
        if metal.overlays():
            return Verdict("unfit", detail="files of metal_kernels/ are replaced")
        call = operation, signature.describe(args, kwargs)
        if call not in self._by_call:
            line = _line(call)
            if self._known is None:
                self._known = verdicts.load(machine())
            self._by_call[call] = self._known.get(line)
            if line not in self._known and len(self._wanted) < MOST_WANTED:
                self._wanted[line] = None
        return self._by_call[call]

    def serve(
        self, operation: str, run: Callable, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Verdict | None, Any]:
        """The verdict on ours for such arguments and, where nothing is against it, what it returns; if it raises after all, its last verdict."""
        verdict = self.verdict(operation, args, kwargs)
        if verdict is None or verdict.objection:
            return verdict, None
        try:
            return verdict, run(*args, **kwargs)
        except (ValueError, RuntimeError) as error:
            verdict = Verdict.of_error("failed", error)
            self._known[_line((operation, signature.describe(args, kwargs)))] = verdict
            self._by_call.clear()
            self._warn(operation, verdict)
            return verdict, None

    def prepare(self, rehearse: Callable[[], None] | None) -> None:
        """Between answers: take in verdicts and start what is wanted. rehearse: asks for what is coming; trials are then waited for a moment."""
        self.take_in()
        if rehearse:
            rehearse()
        if self._wanted and not self._running():
            if self._trials is None:
                atexit.register(self.finish)
            self._trials = Trials(self._wanted, functools.partial(_keep, machine(), self._arrived))
            self._wanted = {}
            try:
                self._trials.start()
            except RuntimeError:  # no more threads
                self._trials = None
        if rehearse and self._trials:
            self._trials.join(WAIT_S)
            self.take_in()

    def take_in(self) -> None:
        """Let verdicts that have arrived count from here on, and warn, once an operation, of a kernel that is not right."""
        while not self._arrived.empty():
            line, verdict = self._arrived.get()
            self._known[line] = verdict
            self._by_call.clear()
            self.generation += 1
            if verdict.outcome in ("wrong", "failed"):
                self._warn(json.loads(line)[0], verdict)

    def finish(self) -> None:
        """At the program's end: no child outlives it, and what was found is kept."""
        if self._running():
            self._trials.stop()
            self._trials.join(1)
        self.take_in()

    def forget_trials(self) -> None:
        """In a forked process, which has neither the thread nor the child."""
        self._trials, self._arrived = None, queue.SimpleQueue()

    def _running(self) -> bool:
        return self._trials is not None and self._trials.is_alive()

    def _warn(self, operation: str, verdict: Verdict) -> None:
        if operation not in self._warned:
            self._warned.add(operation)
            with contextlib.suppress(OSError, ValueError):  # a closed stream
                print(
                    f"warning: our kernel for {operation} is left out ({verdict.objection}); MLX serves",
                    file=sys.stderr,
                )


here = Trust()
os.register_at_fork(after_in_child=lambda: here.forget_trials())
