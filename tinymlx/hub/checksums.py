"""SHA-256 of files, the SHA256SUMS list that `tinymlx convert` writes, and a private memory of files already verified.

Hashing runs at 0.5 to 2 GB/s, so a start would take seconds longer if every file were hashed each time. A file is
hashed once and then known by device, inode, size and both timestamps; the change time cannot be set back by hand. What
this cannot see is a disk that loses bits without a write.
"""

import hashlib
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from tinymlx.errors import UserError
from tinymlx.hub.progress import Progress

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")
_CHUNK = 4 << 20
_REMEMBERED = 256
_SETTLED_S = 2.0  # a file changed later than this ago may change again under the same timestamp


def sha256(path: Path, progress: Progress | None = None, *, done: int = 0, total: int | None = None) -> str:
    """Hex digest of a file. progress: called with `done` plus bytes hashed, and `total` (default: this file's size)."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        total = os.fstat(file.fileno()).st_size if total is None else total
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress:
                progress(done, total)
    return digest.hexdigest()


def matches(
    path: Path, expected: str, progress: Progress | None = None, *, done: int = 0, total: int | None = None
) -> bool:
    """Whether the file's SHA-256 is `expected` (hex). Hashes it unless this very file was found right before."""
    expected = expected.lower()
    before = _identity(path)
    known = _read_memory()
    if known.get(str(path.resolve())) == [*before, expected]:
        return True
    if sha256(path, progress, done=done, total=total) != expected:
        return False
    if _identity(path) == before and time.time() - path.stat().st_ctime > _SETTLED_S:
        known.pop(str(path.resolve()), None)
        known[str(path.resolve())] = [*before, expected]
        _write_memory(known)
    return True


_MAX_SUMS = 64 << 20


def read_sums(folder: Path) -> dict[str, str] | None:
    """File name to hex digest from `folder`'s SHA256SUMS (the format of sha256sum); None where there is none."""
    file = folder / SUMS
    try:
        if not file.is_symlink() and not file.exists():
            return None
        if not file.is_file() or file.stat().st_size > _MAX_SUMS:
            raise UserError(f"{file} is not a list of checksums; remove it, or convert the model again")
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}; remove it, or convert the model again") from None
    sums = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if not match or Path(match[2]).name != match[2]:
            raise UserError(
                f"{file}, line {number} is not '<sha256>  <file name>'; remove the file, or convert the model again"
            )
        sums[match[2]] = match[1].lower()
    return sums


def verify_sums(folder: Path, weight_files: list[Path], progress: Progress | None = None) -> None:
    """Compare every file that `folder`'s SHA256SUMS lists; without such a list do nothing.

    Raises UserError naming the first file that is missing, changed, or a weight file that the list leaves out.
    """
    sums = read_sums(folder)
    if sums is None:
        return
    for file in weight_files:
        if file.name not in sums:
            raise UserError(
                f"{file} is not listed in {SUMS} beside it: it belongs to another model; convert the model again"
            )
    for name in sums:
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing, but {SUMS} lists it; copy or convert the model again")
    total = sum((folder / name).stat().st_size for name in sums)
    done = 0
    for name, expected in sums.items():
        if not matches(folder / name, expected, progress, done=done, total=total):
            raise UserError(
                f"{folder / name} differs from its sum in {SUMS}: it is damaged or was edited; "
                f"copy or convert the model again, or take its line out of {SUMS} if you edited it"
            )
        done += (folder / name).stat().st_size
        if progress:
            progress(done, total)


def write_sums(folder: Path, names: list[str], progress: Progress | None = None) -> None:
    """Write `folder`'s SHA256SUMS over the files `names` in it, as `sha256sum` would."""
    sizes = {name: (folder / name).stat().st_size for name in sorted(names)}
    lines, done, total = [], 0, sum(sizes.values())
    for name, size in sizes.items():
        lines.append(f"{sha256(folder / name, progress, done=done, total=total)}  {name}\n")
        done += size
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def _identity(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _memory_file() -> Path:
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "tinymlx" / "verified.json"
    caches = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return Path.home() / caches / "tinymlx" / "verified.json"


def _read_memory() -> dict[str, list]:
    """What was verified before; empty where that file is absent, damaged, or writable by somebody else."""
    try:
        file = _memory_file()
        stat = file.stat()
        if stat.st_uid != os.getuid() or stat.st_mode & 0o022:
            return {}
        memory = json.loads(file.read_text(encoding="utf-8"))
        return memory if isinstance(memory, dict) else {}
    except (OSError, ValueError, RuntimeError, RecursionError):  # RuntimeError: no home folder
        return {}


def _write_memory(memory: dict[str, list]) -> None:
    """Best effort: without it the next start hashes again."""
    try:
        file = _memory_file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent)  # mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                json.dump(dict(list(memory.items())[-_REMEMBERED:]), out)
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)
            raise
    except (OSError, RuntimeError):
        pass
