"""Writing a model folder: all of it under its name, or nothing."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tinymlx.errors import UserError
from tinymlx.hub.checkpoint import INDEX, check_inside
from tinymlx.hub.progress import Progress
from tinymlx.hub.safetensors import SafetensorsFile

if TYPE_CHECKING:
    import mlx.core as mx

# A shard is in memory whole while it is written, so it is kept well below the 5 GB that mlx-lm makes it.
SHARD_NBYTES = 1 << 30

# What stands beside the weights and goes with them, licence included.
_COMPANIONS = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
)


class Job(NamedTuple):
    """Tensors that are made together."""

    names: tuple[str, ...]
    nbytes: int
    make: "Callable[[], dict[str, mx.array]]"


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target` that takes its name when the block ends well, and is removed when it does not.

    Raises UserError when `target` exists and is not an empty folder. What a killed process left, the next one removes.
    """
    target = Path(os.path.abspath(target))  # "." has no name
    try:
        str(target).encode()  # MLX opens files by UTF-8 names
        taken = target.is_symlink() or target.exists() and (not target.is_dir() or any(target.iterdir()))
    except (OSError, UnicodeEncodeError) as error:
        raise UserError(
            f"{str(target)[:200]!r} cannot be a folder: {getattr(error, 'strerror', None) or 'not UTF-8'}; name another"
        ) from None
    if taken:
        raise UserError(f"{target} exists already; name a new folder, or remove it first")
    prefix = f".{target.name}.partial-"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target.parent, prefix)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    except OSError as error:
        raise UserError(f"{target} cannot be made: {error.strerror or error}") from None
    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # network disks may know no locks
            fcntl.flock(lock, fcntl.LOCK_EX)  # tells the next process that this one is alive
        folder.chmod(0o777 & ~_umask())  # mkdtemp's is private
        yield folder
        for path in folder.iterdir():
            _sync(path)
        _sync(folder)
        os.rename(folder, target)  # replaces an empty folder, and fails on one that got files meanwhile
        _sync(target.parent)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise UserError(f"{target} cannot be written: {error.strerror or error}; nothing was left there") from None
        raise
    finally:
        os.close(lock)


def write_weights(folder: Path, jobs: Sequence[Job], parameters: int, progress: Progress | None = None) -> None:
    """Make and write tensors shard by shard, with the index that mlx-lm writes.

    parameters: how many weights the tensors stand for. In memory at a time: one shard, and the inputs of one job.
    """
    import mlx.core as mx

    shards = _split(jobs)
    total = sum(job.nbytes for job in jobs)
    done, weight_map = 0, {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if len(shards) > 1 else "model.safetensors"
        tensors: dict[str, mx.array] = {}
        for job in shard:
            made = job.make()
            mx.eval(made)
            if made.keys() != set(job.names) or sum(x.nbytes for x in made.values()) != job.nbytes:
                raise AssertionError(f"{job.names} are not as planned")
            tensors |= made
            done += job.nbytes
            if progress:
                progress(done, total)
        weight_map |= dict.fromkeys(tensors, name)
        try:
            mx.save_safetensors(str(folder / name), tensors, metadata={"format": "mlx"})
        except RuntimeError as error:
            free = shutil.disk_usage(folder).free
            raise UserError(f"writing {name} failed with {free / 1e9:.1f} GB free on the disk: {error}") from None
        del tensors
        mx.clear_cache()
        SafetensorsFile(folder / name)  # whole?
    index = {
        "metadata": {"total_size": total, "total_parameters": parameters},
        "weight_map": dict(sorted(weight_map.items())),
    }
    write_json(folder / INDEX, index)


def copy_companions(source: Path, folder: Path) -> None:
    """Copy tokenizer, chat template, generation config and licence from one model folder into another."""
    for name in _COMPANIONS:
        file = source / name
        if file.is_file():
            check_inside(source, file)
            shutil.copyfile(file, folder / name)


def write_json(file: Path, value: dict) -> None:
    file.write_text(json.dumps(value, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")


def check_disk(target: Path, nbytes: int) -> None:
    """Raise UserError when `nbytes` do not fit beside `target`."""
    free = free_bytes(target)
    if nbytes > free:
        raise UserError(
            f"{target} needs {nbytes / 1e9:.1f} GB, but its disk has {free / 1e9:.1f} GB free; free some space"
        )


def free_bytes(path: Path) -> int:
    """Free bytes on the disk that holds `path`, or will once it exists."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _split(jobs: Sequence[Job]) -> list[list[Job]]:
    shards: list[list[Job]] = [[]]
    nbytes = 0
    for job in jobs:
        if shards[-1] and nbytes + job.nbytes > SHARD_NBYTES:
            shards.append([])
            nbytes = 0
        shards[-1].append(job)
        nbytes += job.nbytes
    return shards


def _remove_leftovers(parent: Path, prefix: str) -> None:
    for folder in parent.iterdir():
        if not folder.name.startswith(prefix) or folder.is_symlink() or not folder.is_dir():
            continue
        lock = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # another process is writing it
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
