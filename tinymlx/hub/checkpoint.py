"""A checkpoint: config and tensors of a model folder or file, whose headers are checked before any payload is read."""

import abc
import json
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from tinymlx.errors import UserError
from tinymlx.hub.checksums import verify_sums
from tinymlx.hub.progress import Progress
from tinymlx.hub.safetensors import SafetensorsFile, TensorInfo, shown
from tinymlx.hub.source import ModelSource

if TYPE_CHECKING:
    import mlx.core as mx

__all__ = [
    "Checkpoint",
    "SafetensorsCheckpoint",
    "TensorInfo",
    "check_inside",
    "open_checkpoint",
    "present",
    "read_json",
]

INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")
_MAX_JSON = 64 << 20  # the largest index (Qwen3-235B, one tensor an expert) is 3 MB
_AGAIN = "download the model again"


class Checkpoint(abc.ABC):
    """What SafetensorsCheckpoint and GGUFCheckpoint offer alike."""

    source: ModelSource
    config: dict
    """config.json; for GGUF the same keys made from its metadata."""
    generation_config: dict
    """generation_config.json; {} when absent."""
    tensors: dict[str, TensorInfo]
    """By name as in an mlx-community checkpoint (X.weight, X.scales, X.biases, X.bias), in the order of the files."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(info.nbytes for info in self.tensors.values())

    @abc.abstractmethod
    def read(self, name: str) -> "mx.array":
        """A tensor, copied out of a memory map, its dtype as stored. Raises UserError when the file cannot be read."""

    def verify_checksums(self, progress: Progress | None = None) -> None:
        """Compare the files with their checksums, where they have any. Raises UserError naming what differs."""


def open_checkpoint(source: ModelSource) -> Checkpoint:
    """Read the config and every header. Raises UserError naming the file, and the tensor where there is one."""
    if source.format == "gguf":
        from tinymlx.hub.gguf import GGUFCheckpoint  # imports this module

        return GGUFCheckpoint(source)
    return SafetensorsCheckpoint(source)


class SafetensorsCheckpoint(Checkpoint):
    def __init__(self, source: ModelSource):
        self.source = source
        folder = source.path
        config_file = folder / "config.json"
        if not present(config_file):
            raise UserError(f"{config_file} is missing; a model folder holds config.json and .safetensors files")
        check_inside(folder, config_file)
        self.config = read_json(config_file)
        generation_file = folder / "generation_config.json"
        self.generation_config = {}
        if present(generation_file):
            check_inside(folder, generation_file)
            self.generation_config = read_json(generation_file)

        weight_map = _read_index(folder)
        self.files: dict[Path, SafetensorsFile] = {}
        self.tensors = {}
        for path in _weight_files(folder, weight_map):
            check_inside(folder, path)
            file = self.files[path] = SafetensorsFile(path)
            for name, info in file.tensors.items():
                if name in self.tensors:
                    raise UserError(
                        f"tensor {shown(name)} is both in {self.tensors[name].file} and in {path}; {_AGAIN}"
                    )
                self.tensors[name] = info
        if weight_map is not None:
            _compare_with_index(folder, weight_map, self.tensors)

    def read(self, name: str) -> "mx.array":
        return self.files[self.tensors[name].file].read(name)

    def verify_checksums(self, progress: Progress | None = None) -> None:
        verify_sums(self.source.path, list(self.files), progress)


def read_json(file: Path) -> dict:
    """A JSON object from a file. Raises UserError naming the file when it is none."""
    try:
        if file.stat().st_size > _MAX_JSON:
            raise UserError(f"{file} has {file.stat().st_size} bytes, too many for what it should be; {_AGAIN}")
        value = json.loads(file.read_bytes().decode("utf-8"))
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise UserError(f"{file} is nested too deeply; {_AGAIN}") from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise UserError(f"{file} is not JSON ({error}); {_AGAIN}") from None
    if not isinstance(value, dict):
        raise UserError(f"{file} holds a JSON {type(value).__name__} where an object belongs; {_AGAIN}")
    return value


def present(file: Path) -> bool:
    """Whether the file is there. A link to nothing, as an unfinished download leaves it, is an error and not an absent file."""
    if file.is_symlink() and not file.exists():
        raise UserError(f"{file} is a link to a file that is not there; {_AGAIN}")
    return file.exists()


def check_inside(folder: Path, file: Path) -> None:
    """Refuse what is not a file of reasonable size, and a link that leads out of the model folder.

    Links into the hub cache that the folder belongs to are followed.

    A folder that was unpacked or cloned can hold links that a stranger chose. Followed, they would let an index or a
    tokenizer name any file of this machine, and `convert` would carry it into a folder that may be published. The hub's
    cache is built of links, `snapshots/<commit>/x -> ../../blobs/<hash>` (or the cache's shared `blobs`), which
    huggingface_hub made itself.
    """
    try:
        target, root = file.resolve(), folder.resolve()
        status = target.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise UserError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}; {_AGAIN}") from None
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{file} is not a regular file; {_AGAIN}")
    if not file.name.endswith(".safetensors") and status.st_size > _MAX_JSON:
        raise UserError(f"{file} has {status.st_size} bytes, too many for what it should be; {_AGAIN}")
    if target.is_relative_to(root):
        return
    if root.parent.name == "snapshots" and root.parent.parent.name.startswith("models--"):
        repository = root.parent.parent
        if any(target.is_relative_to(place / "blobs") for place in (repository, repository.parent)):
            return
    raise UserError(f"{file} is a link to {target}, outside the model folder; put the file itself there")


def _read_index(folder: Path) -> dict[str, str] | None:
    """Tensor name to file name from the index, or None where there is none."""
    file = folder / INDEX
    if not present(file):
        return None
    check_inside(folder, file)
    weight_map = read_json(file).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{file} has no weight_map; {_AGAIN}")
    for name, held_by in weight_map.items():
        if not isinstance(held_by, str):
            raise UserError(f"{file}: tensor {shown(name)} is mapped to something that is not a file name; {_AGAIN}")
        if Path(held_by).name != held_by or "\\" in held_by or "\0" in held_by:
            raise UserError(
                f"{file}: tensor {shown(name)} is mapped to {shown(held_by)}, outside the model folder; {_AGAIN}"
            )
        if not held_by.endswith(".safetensors"):
            raise UserError(
                f"{file}: tensor {shown(name)} is mapped to {shown(held_by)}, not a .safetensors file; {_AGAIN}"
            )
    return weight_map


def _weight_files(folder: Path, weight_map: dict[str, str] | None) -> list[Path]:
    """The files that make up the model, in order."""
    if weight_map is not None:
        for name, held_by in weight_map.items():
            if not (folder / held_by).is_file():
                raise UserError(f"{folder / held_by} is missing, but {INDEX} maps tensor {shown(name)} to it; {_AGAIN}")
        return [folder / name for name in sorted(set(weight_map.values()))]

    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder} holds no .safetensors file{_other_weights(folder)}")
    shards = [_SHARD.fullmatch(file.name) for file in files]
    if all(shards):
        count = int(shards[0][2])
        numbers = {int(shard[1]) for shard in shards}
        missing = sorted(set(range(1, count + 1)) - numbers)
        if missing:
            raise UserError(f"{folder / f'model-{missing[0]:05d}-of-{count:05d}.safetensors'} is missing; {_AGAIN}")
        if len(files) == count:
            return files
    elif len(files) == 1:
        return files
    raise UserError(
        f"{folder} holds {len(files)} .safetensors files and no {INDEX} that says which belong together; {_AGAIN}"
    )


def _other_weights(folder: Path) -> str:
    """A hint at what else lies there."""
    for pattern, advice in (
        ("*.gguf", "; give the .gguf file itself: {}"),
        ("*.bin", ", and {} is a pickle, which can run code when loaded"),
    ):
        if found := sorted(folder.glob(pattern)):
            return advice.format(found[0])
    return f"; {_AGAIN}"


def _compare_with_index(folder: Path, weight_map: dict[str, str], tensors: dict[str, TensorInfo]) -> None:
    index = folder / INDEX
    for name, held_by in weight_map.items():
        if name not in tensors:
            raise UserError(f"{folder / held_by} lacks tensor {shown(name)}, which {INDEX} maps to it; {_AGAIN}")
        if tensors[name].file.name != held_by:
            raise UserError(
                f"{index} maps tensor {shown(name)} to {held_by}, but {tensors[name].file.name} holds it; {_AGAIN}"
            )
    for name, info in tensors.items():
        if name not in weight_map:
            raise UserError(f"{info.file} holds tensor {shown(name)}, which {INDEX} does not list; {_AGAIN}")
