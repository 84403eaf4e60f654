"""A progress bar over bytes, with rate and time left."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""Called with bytes done so far and bytes in all."""


@contextmanager
def byte_bar(what: str, *, show: bool = True) -> Iterator[Progress]:
    """`with byte_bar("verifying") as progress: work(progress)`: a bar on stderr, where that is a terminal."""
    if not (show and sys.stderr.isatty()):
        yield lambda done, total: None
        return
    from rich.console import Console  # 0.1 s to import
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
