"""Models from the Hugging Face hub, in the cache that huggingface_hub shares between programs.

huggingface_hub lists, names and links the files. It starts a broken file anew in the next run, so the large ones (those
with a published SHA-256) are fetched here into `blobs/<sha256>`, the place its cache keeps them: continued where the
last run stopped, and verified before they get their name. `snapshot_download` then finds them there.
"""

import errno
import fnmatch
import glob
import hashlib
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tinymlx.errors import UserError
from tinymlx.hub import smollm2
from tinymlx.hub.progress import byte_bar
from tinymlx.hub.writer import free_bytes

SMALL_FILES = ("*.json", "*.jinja", "tokenizer.model", "merges.txt")  # weights beside these; never a pickle (.bin, .pt)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONNECTIONS = 4
_TRIES = 5  # without a byte arriving in between
_PAUSE_S = 1.0
_TIMEOUT_S = 15.0
_FRESHNESS_TIMEOUT_S = 3.0  # when the cache can answer too
_CHUNK = 1 << 20


class CachedModel(NamedTuple):
    name: str
    """What `--model` takes."""
    path: Path
    nbytes: int
    """Of the weights."""


class _File(NamedTuple):
    name: str
    size: int
    blob: str
    """Its name in the cache: the SHA-256 of a large file, the git hash of a small one."""
    is_large: bool


def download(
    name: str,
    revision: str | None = None,
    *,
    progress: bool = True,
    cache_dir: Path | None = None,
    endpoint: str | None = None,
) -> Path:
    """The folder in the hub's cache that holds owner/name at a branch, tag or commit (default: main).

    A whole snapshot in the cache serves when the hub cannot be reached. Raises UserError with the next act.
    """
    _check_endpoint(endpoint or os.environ.get("HF_ENDPOINT"))  # huggingface_hub fails to import with a broken one
    import huggingface_hub  # 0.5 s to import
    from huggingface_hub import constants

    hub = _Hub(name, revision, Path(cache_dir or constants.HF_HUB_CACHE).expanduser(), endpoint)
    cached = hub.cached()
    if cached is not None and revision and _COMMIT.fullmatch(revision):
        return cached  # a commit never changes
    try:
        info = huggingface_hub.HfApi(endpoint=endpoint).model_info(
            name, revision=revision, files_metadata=True, timeout=_FRESHNESS_TIMEOUT_S if cached else _TIMEOUT_S
        )
        files = _wanted(name, info.siblings or [])
        if cached is not None and cached.name == info.sha and all((cached / file.name).exists() for file in files):
            return cached
    except Exception as error:
        if cached is not None and hub.is_unreachable(error):
            return cached
        raise hub.explain(error) from None
    try:
        _check_disk(name, files, hub)
        with byte_bar(f"downloading {name}", show=progress) as report:
            _fetch_large(hub, info.sha, [file for file in files if file.is_large], report)
        return hub.snapshot(files)
    except KeyboardInterrupt:
        raise UserError(f"{name}: download interrupted; the same command continues it") from None
    except Exception as error:
        raise hub.explain(error) from None


def cached_models() -> list[CachedModel]:
    """Models that need no download: whole snapshots in the hub's cache, and smollm2. No cache folder: none of those."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    models = []
    if (path := smollm2.installed()) is not None:
        models.append(CachedModel("smollm2", path, path.stat().st_size))
    try:
        repositories = scan_cache_dir().repos
    except (CacheNotFound, ValueError, OSError):  # ValueError: the cache is a file
        repositories = frozenset()
    for repository in sorted(repositories, key=lambda r: r.repo_id):
        if repository.repo_type != "model":
            continue
        for revision in sorted(repository.revisions, key=lambda r: ("main" not in r.refs, -r.last_modified)):
            if _is_whole(revision.snapshot_path):
                name = repository.repo_id if "main" in revision.refs else f"{repository.repo_id}@{revision.commit_hash}"
                nbytes = sum(f.size_on_disk for f in revision.files if f.file_name.endswith(".safetensors"))
                models.append(CachedModel(name, revision.snapshot_path, nbytes))
                break
    return models


def _check_endpoint(endpoint: str | None) -> None:
    try:
        valid = not endpoint or urlsplit(endpoint).scheme in ("http", "https") and (urlsplit(endpoint).port or 1) > 0
    except ValueError:
        valid = False
    if not valid:
        raise UserError(f"HF_ENDPOINT is {endpoint!r}, not the address of a hub; correct or unset it")


class _Hub:
    """One repository at one revision, and its place in the cache."""

    def __init__(self, name: str, revision: str | None, cache: Path, endpoint: str | None):
        self.name, self.revision, self.cache, self.endpoint = name, revision, cache, endpoint
        self.folder = cache / f"models--{name.replace('/', '--')}"
        self.blobs = self.folder / "blobs"

    @property
    def shown(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name

    def cached(self) -> Path | None:
        """The whole snapshot in the cache, without a request."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            folder = snapshot_download(
                self.name,
                revision=self.revision,
                cache_dir=self.cache,
                local_files_only=True,
                allow_patterns=list(SMALL_FILES),
                ignore_patterns=["*/*"],
            )
        except (LocalEntryNotFoundError, OSError):
            return None
        return Path(folder) if _is_whole(Path(folder)) else None

    def snapshot(self, files: list[_File]) -> Path:
        """Link the blobs and fetch the small files."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

        quiet = are_progress_bars_disabled()
        disable_progress_bars()
        try:
            folder = snapshot_download(
                self.name,
                revision=self.revision,
                cache_dir=self.cache,
                endpoint=self.endpoint,
                allow_patterns=[glob.escape(file.name) for file in files],
            )
        finally:
            if not quiet:
                enable_progress_bars()
        return Path(folder)

    def is_unreachable(self, error: Exception) -> bool:
        """Whether the cache may answer instead: no network, hub down, repository closed; not if a revision is gone."""
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RevisionNotFoundError

        return isinstance(error, (_http_error(), HfHubHTTPError, OfflineModeIsEnabled)) and not isinstance(
            error, RevisionNotFoundError
        )

    def explain(self, error: Exception) -> UserError:
        """One line for what went wrong; a fault of this program is raised as it is."""
        from huggingface_hub import errors

        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, UserError):
            return error
        if isinstance(error, errors.GatedRepoError):
            return UserError(
                f"{self.name} is gated: accept its terms on the hub's page of it, then log in with `hf auth login`"
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return UserError(
                f"{self.name} has no revision {self.revision!r} on the hub; leave out @{self.revision} for the newest"
            )
        if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
            return UserError(
                f"no model {self.name!r} on the hub, and no folder of that name here; "
                "check the spelling, or log in with `hf auth login` if it is private"
            )
        if isinstance(error, errors.OfflineModeIsEnabled):
            return UserError(
                f"{self.shown} is not whole in the cache ({self.cache}), "
                "and HF_HUB_OFFLINE forbids to download it; unset that"
            )
        if isinstance(error, (errors.LocalEntryNotFoundError, _http_error())) and status is None:
            return UserError(
                f"the hub cannot be reached ({_one_line(error)}), and {self.shown} is not whole in the cache "
                f"({self.cache}); the same command continues once there is a network"
            )
        if status is not None:
            return UserError(
                f"{self.shown}: the hub answered {status}; try again later, the same command continues the download"
            )
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return UserError(
                f"the disk of {self.cache} is full; free some space, the same command continues the download"
            )
        if isinstance(error, OSError):
            return UserError(
                f"{self.shown} cannot be written to the cache {self.cache}: {error.strerror or _one_line(error)}"
            )
        raise error


def _wanted(name: str, siblings: list[Any]) -> list[_File]:
    """The files to fetch: weights, config, tokenizer; of the top folder only."""
    top = [s for s in siblings if "/" not in s.rfilename and "\\" not in s.rfilename]
    weights = [s for s in top if fnmatch.fnmatch(s.rfilename, "model*.safetensors")]
    weights = weights or [s for s in top if s.rfilename.endswith(".safetensors")]
    if not weights:
        kinds = sorted({Path(s.rfilename).suffix for s in siblings} & {".bin", ".pt", ".pth", ".gguf", ".h5", ".onnx"})
        found = f" (only {', '.join(kinds)})" if kinds else ""
        advice = "download the .gguf and give its path" if ".gguf" in kinds else "take a repository that has them"
        raise UserError(f"{name} on the hub has no .safetensors weights{found}; {advice}")
    small = [s for s in top if any(fnmatch.fnmatch(s.rfilename, pattern) for pattern in SMALL_FILES)]
    files = []
    for sibling in weights + small:
        sha256 = sibling.lfs.sha256 if sibling.lfs else None
        if sha256 is not None and not _SHA256.fullmatch(sha256):
            raise UserError(
                f"{name} on the hub: the published SHA-256 of {sibling.rfilename} is malformed; try again later"
            )
        size = (sibling.lfs.size if sibling.lfs else sibling.size) or 0
        files.append(_File(sibling.rfilename, size, sha256 or sibling.blob_id or "", sha256 is not None))
    return files


def _check_disk(name: str, files: list[_File], hub: _Hub) -> None:
    missing = sum(file.size - _nbytes(_partial(hub, file)) for file in files if not (hub.blobs / file.blob).is_file())
    free = free_bytes(hub.cache)
    if missing > free:
        raise UserError(
            f"{name} needs {_gb(missing)} more on disk, but {hub.cache} has {_gb(free)} free; "
            "free some space, or point HF_HOME elsewhere"
        )


def _fetch_large(hub: _Hub, commit: str, files: list[_File], report: Callable[[int, int], None]) -> None:
    """Fetch several files at once; the first failure stops all, and what has arrived stays for the next run."""
    files = list({file.blob: file for file in files}.values())
    total = sum(file.size for file in files)
    counter = _Counter(total, report)
    stop = threading.Event()
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        running = [pool.submit(_fetch, hub, commit, file, counter.add, stop) for file in files]
        try:
            for future in wait(running, return_when=FIRST_EXCEPTION).done:
                future.result()
        except BaseException:
            stop.set()
            for future in running:
                future.cancel()
            raise


class _Counter:
    def __init__(self, total: int, report: Callable[[int, int], None]):
        self.done, self.total, self.report, self.lock = 0, total, report, threading.Lock()

    def add(self, nbytes: int) -> None:
        with self.lock:
            self.done += nbytes
            self.report(self.done, self.total)


class _Stopped(Exception):
    """Another file failed first."""


def _fetch(hub: _Hub, commit: str, file: _File, add: Callable[[int], None], stop: threading.Event) -> None:
    """Bring one blob, continuing what an earlier run left. Raises UserError when its SHA-256 is wrong."""
    from filelock import FileLock
    from huggingface_hub import hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    url = hf_hub_url(hub.name, file.name, revision=commit, endpoint=hub.endpoint)
    blob, partial = hub.blobs / file.blob, _partial(hub, file)
    locks = hub.cache / ".locks" / hub.folder.name
    for folder in (hub.blobs, locks):
        folder.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / f"{file.blob}.tinymlx.lock"):  # another tinymlx may be at the same file
        if blob.is_file():
            add(file.size)
            return
        with open(partial, "a+b", buffering=0) as out:
            digest, done = _hash_partial(out, file.size)
            add(done)
            tries = 0
            while done < file.size:
                before = done
                try:
                    for chunk in _stream(url, done, file.size):
                        if stop.is_set():
                            raise _Stopped
                        if chunk is None:  # the server starts from the first byte again
                            out.truncate(0)
                            add(-done)
                            digest, done = hashlib.sha256(), 0
                            continue
                        out.write(chunk)
                        digest.update(chunk)
                        done += len(chunk)
                        add(len(chunk))
                except _http_error() as error:
                    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
                    if status is not None and status < 500 and status not in (408, 429):
                        raise
                    if tries >= _TRIES - 1 and done <= before:
                        raise
                tries = 0 if done > before else tries + 1
                if tries >= _TRIES:
                    raise UserError(
                        f"{hub.shown}: {file.name} ends at {done} of {file.size} bytes; the same command continues it"
                    )
                if done < file.size:
                    stop.wait(_PAUSE_S * 2**tries)
            os.fsync(out.fileno())
        if digest.hexdigest() != file.blob:
            partial.unlink()
            raise UserError(
                f"{hub.shown}: {file.name} arrived damaged (its SHA-256 differs from the published one); "
                "run the same command again"
            )
        os.replace(partial, blob)


def _stream(url: str, start: int, size: int):
    """Chunks of a file from byte `start` on; first None when the server sends the whole file instead."""
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    headers = {
        **build_hf_headers(library_name="tinymlx"),
        "Accept-Encoding": "identity",
    }  # counted bytes are the file's
    if start:
        headers["Range"] = f"bytes={start}-"
    with get_session().stream("GET", url, headers=headers, timeout=_TIMEOUT_S, follow_redirects=True) as response:
        if response.status_code >= 400:
            response.read()
        hf_raise_for_status(response)
        if start and response.status_code != 206:
            yield None
            start = 0
        for (
            chunk
        ) in response.iter_bytes():  # as they arrive: with a size, a connection that breaks takes the rest with it
            if start + len(chunk) > size:
                raise UserError(f"{url} sends more than the {size} bytes that the hub lists; try again later")
            start += len(chunk)
            yield chunk


def _hash_partial(out, size: int):
    """Digest and length of what lies in the partial file; too much of it is thrown away."""
    digest, done = hashlib.sha256(), 0
    if os.fstat(out.fileno()).st_size > size:
        out.truncate(0)
    out.seek(0)
    while chunk := out.read(_CHUNK):
        digest.update(chunk)
        done += len(chunk)
    return digest, done


def _partial(hub: _Hub, file: _File) -> Path:
    return hub.blobs / f"{file.blob}.tinymlx.incomplete"  # `hf cache` shows and prunes *.incomplete


def _is_whole(folder: Path) -> bool:
    """Whether a snapshot has a config and all its weight files; what is in them is checked when it is opened."""
    from tinymlx.hub.checkpoint import INDEX, read_json  # imports this package's `source`

    try:
        if not (folder / "config.json").exists():
            return False
        if (folder / INDEX).exists():
            held = read_json(folder / INDEX).get("weight_map")
            return isinstance(held, dict) and all(
                isinstance(n, str) and (folder / n).exists() for n in set(held.values())
            )
        return any(file.exists() for file in folder.glob("*.safetensors"))
    except (UserError, OSError, TypeError, ValueError):  # a damaged index
        return False


def _nbytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _http_error() -> type[Exception]:
    """The base of all errors of the HTTP library that this huggingface_hub uses (httpx or httpx2)."""
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


def _one_line(error: Exception) -> str:
    cause = error.__cause__ if error.__cause__ is not None else error
    return (str(cause).splitlines() or [""])[0].strip() or type(cause).__name__


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"
