"""What `--model` may be, and where its files are."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tinymlx.errors import UserError
from tinymlx.hub.safetensors import shown

_HUB_NAME = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*)(?:@([A-Za-z0-9_][A-Za-z0-9._/-]*))?")
_ACCEPTED = "--model takes a folder, a .gguf file, a hub name owner/name[@revision], or smollm2"


@dataclass(frozen=True)
class ModelSource:
    name: str
    """What the user typed; for a hub model owner/name."""
    path: Path
    """A folder, or a .gguf file."""
    format: str
    """"safetensors" or "gguf"."""
    revision: str | None = None
    """Of a hub model: the commit that `path` holds."""


def resolve(model: str, *, progress: bool = True) -> ModelSource:
    """Find a model's files, downloading and verifying them where the hub has them; `progress` shows a bar.

    "models/qwen3" -> that folder, "x.gguf" -> that file, "Qwen/Qwen3-0.6B@main" -> its snapshot in the hub's cache.
    A folder or file that exists wins over a hub name. Raises UserError saying what was looked for.
    """
    local = Path(os.path.expanduser(model))  # Path.expanduser raises where there is no such user
    kind = _kind(local) if model else "absent"
    if kind == "folder":
        return ModelSource(model, local, "safetensors")
    if kind == "file":
        if local.suffix.lower() == ".gguf":
            return ModelSource(model, local, "gguf")
        raise UserError(f"{model} is a file, but not a .gguf; give the folder that holds it")
    if model == "smollm2":
        from tinymlx.hub import smollm2

        return ModelSource(model, smollm2.find(), "gguf")
    hub = split_hub_name(model)
    if hub is None:
        looked_for = f"no folder or file {shown(model)!r}" if model else "no model given"
        raise UserError(f"{looked_for}; {_ACCEPTED}")
    from tinymlx.hub.download import download

    name, revision = hub
    path = download(name, revision, progress=progress)
    return ModelSource(name, path, "safetensors", path.name)


def split_hub_name(model: str) -> tuple[str, str | None] | None:
    """Owner/name and revision, or None when it is no hub name. "Qwen/Qwen3-8B@main" -> ("Qwen/Qwen3-8B", "main").

    Both end up in paths of the cache: nothing with "..", "//" or "--" passes (the cache folder is models--owner--name).
    """
    match = _HUB_NAME.fullmatch(model)
    if not match or model.lower().endswith(".gguf"):
        return None
    name, revision = match.groups()
    if (
        ".." in model
        or "--" in name
        or "//" in model
        or model.endswith(("/", "."))
        or name.endswith((".", "-", ".git", ".ipynb"))
    ):
        return None
    if any(len(part) > 96 for part in name.split("/")) or len(revision or "") > 255 or ".lock" in (revision or ""):
        return None
    return name, revision


def _kind(path: Path) -> str:
    try:
        return "folder" if path.is_dir() else "file" if path.exists() else "absent"
    except (OSError, ValueError) as error:  # too long, a null byte, or a folder on the way that may not be entered
        if isinstance(error, PermissionError):
            raise UserError(f"{path} cannot be opened: {error.strerror}") from None
        return "absent"
