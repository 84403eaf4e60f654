"""Who may import whom. Read from the source, so that an import inside a function counts too."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "tinymlx"

# cli -> server, learn, bench -> engine, train -> models -> kernels -> ops; cache, hub and memory are leaves.
BELOW_ENGINE = {"models", "kernels", "ops", "cache", "hub", "memory"}
LAYERS = {
    "ops": set(),
    "cache": set(),
    "hub": set(),
    "memory": set(),
    "kernels": {"ops", "cache", "memory"},  # memory: the file of what trials of kernels found
    "models": {"kernels", "ops", "cache", "hub", "memory"},
    "engine": BELOW_ENGINE,
    "train": BELOW_ENGINE | {"engine"},
    "bench": BELOW_ENGINE | {"engine", "train"},
    "learn": BELOW_ENGINE | {"engine", "train"},
    "server": BELOW_ENGINE | {"engine", "train"},
    "cli": BELOW_ENGINE | {"engine", "train", "bench", "learn", "server"},
}
# Modules right in tinymlx/ that a layer may use; `errors` is for all.
ROOT = {layer: {"paths"} for layer in LAYERS if LAYERS[layer]} | {"cli": {"paths", "blas"}}
NOT_AT_RUN_TIME = {"transformers", "mlx_lm", "torch", "tensorflow", "jax"}
RUNS_CODE_FROM_FILES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
AT_LOADING = {"dequantize", "rope_periods"}  # the fine ops a model may use itself; in a step it calls kernels alone
FORBIDDEN = NOT_AT_RUN_TIME | RUNS_CODE_FROM_FILES | {"weeks", "tests", "benchmarks"}


def imports(module: str, source: str, is_package: bool) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """(line, dotted module, names imported from it) of every import statement, and of import_module("...")."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ()
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parent = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parent, *([node.module] if node.module else [])])
            yield node.lineno, base, tuple(alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                name = node.args[0]
                yield node.lineno, name.value if isinstance(name, ast.Constant) else "<computed>", ()


def fine_ops(sources: dict[str, str]) -> set[str]:
    """The functions that a learner can graft: what `tinymlx.ops` offers, without its data types."""
    tree = ast.parse(sources.get("tinymlx/ops/__init__.py", ""))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    return {name for name in names if not name[0].isupper()}


def violations(sources: dict[str, str]) -> list[str]:
    """`sources`: path in the repository -> text. One line for each import that breaks the order of layers."""
    grafts = fine_ops(sources)
    found = []
    for path, source in sources.items():
        parts = Path(path).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        layer = parts[1] if len(parts) > 2 else "tinymlx"  # a module right in tinymlx/
        if layer != "tinymlx" and layer not in LAYERS:
            found.append(f"{path}: no layer is called {layer}")
            continue
        for line, target, names in imports(module, source, is_package):
            # `from tinymlx import ops` imports tinymlx.ops
            targets = [f"{target}.{name}" for name in names] if target == "tinymlx" else [target]
            for target in targets:
                reason = objection(layer, path, target, names, grafts)
                if reason:
                    found.append(f"{path}:{line}: {reason}")
        if layer == "models":
            found += [
                f"{path}:{line}: models call kernels, not ops.{name}"
                for line, name in uses(source, "ops")
                if name in grafts - AT_LOADING
            ]
    return found


def uses(source: str, module: str) -> Iterator[tuple[int, str]]:
    """(line, name) of each `module.name`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == module:
            yield node.lineno, node.attr


def objection(layer: str, path: str, target: str, names: tuple[str, ...], grafts: set[str]) -> str | None:
    top, _, rest = target.partition(".")
    if target == "<computed>":
        return None if path == "tinymlx/cli/__init__.py" else "a computed import hides what is imported"
    if top in FORBIDDEN or target.startswith("tinymlx.weeks"):
        return f"{target} is not for the product"
    if top != "tinymlx":
        if layer == "tinymlx" and top == "mlx":
            return "importing tinymlx must not import MLX"
        return None
    other = rest.split(".")[0]
    if other in ("errors", "__version__", "") or other == layer:
        return None
    if layer == "tinymlx":
        allowed = {"tinymlx/__main__.py": {"cli"}, "tinymlx/__init__.py": {"blas"}}.get(path, set())
        return None if other in allowed else f"the root of the package imports {target}"
    if other not in LAYERS:
        return None if other in ROOT.get(layer, ()) else f"{layer} imports {target}"
    if other not in LAYERS[layer]:
        return f"{layer} imports {target}"
    if other == "ops" and layer in ("models", "kernels") and grafts & set(names):
        return f"ops.{min(grafts & set(names))} imported by name: a learner's function could not take its place"
    return None


def repository() -> dict[str, str]:
    return {str(path.relative_to(PACKAGE.parent)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def test_the_layers_hold():
    sources = repository()
    assert "tinymlx/cli/__init__.py" in sources
    assert violations(sources) == []


OPS = {"tinymlx/ops/__init__.py": "from .norm import rms_norm\nfrom .linear import Linear, dequantize, linear"}


@pytest.mark.parametrize(
    "path, code",
    [
        ("tinymlx/ops/norm.py", "from tinymlx import kernels"),
        ("tinymlx/ops/norm.py", "import tinymlx.paths"),
        ("tinymlx/kernels/head.py", "from tinymlx.models import qwen3"),
        ("tinymlx/kernels/head.py", "from tinymlx.models.qwen3 import Qwen3"),
        ("tinymlx/kernels/head.py", "from tinymlx.ops import Linear, rms_norm"),
        ("tinymlx/kernels/head.py", "from tinymlx.ops.norm import rms_norm"),
        ("tinymlx/models/qwen3.py", "from tinymlx import ops\n\ndef f(x, w):\n    return ops.rms_norm(x, w)"),
        ("tinymlx/models/qwen3.py", "from tinymlx.ops.linear import linear"),
        ("tinymlx/models/qwen3.py", "def f():\n    from tinymlx.engine import Session"),
        ("tinymlx/models/qwen3.py", "from ..engine import Session"),
        ("tinymlx/models/__init__.py", "from ..engine import Session"),
        ("tinymlx/engine/generate.py", "import tinymlx.train.loop as loop"),
        ("tinymlx/engine/generate.py", "from tinymlx import blas"),
        ("tinymlx/bench/roofline.py", "from tinymlx.server import app"),
        ("tinymlx/bench/roofline.py", "from tinymlx.cli import main"),
        ("tinymlx/hub/gguf.py", "from tinymlx.memory.plan import plan"),
        ("tinymlx/hub/gguf.py", "from tinymlx.paths import weeks"),
        ("tinymlx/memory/plan.py", "from tinymlx import hub"),
        ("tinymlx/cache/pool.py", "from tinymlx.ops import Linear"),
        ("tinymlx/hub/tokenizer.py", "try:\n    import transformers\nexcept ImportError:\n    pass"),
        ("tinymlx/hub/tokenizer.py", "import importlib\nimportlib.import_module('transformers.models')"),
        ("tinymlx/hub/tokenizer.py", "name = 'x'\n__import__(name)"),
        ("tinymlx/engine/generate.py", "from mlx_lm.utils import load"),
        ("tinymlx/hub/checkpoint.py", "import pickle"),
        ("tinymlx/cli/chat.py", "import weeks.day1"),
        ("tinymlx/cli/chat.py", "from tinymlx import weeks"),
        ("tinymlx/cli/chat.py", "from tinymlx.weeks import day1"),
        ("tinymlx/blas.py", "import mlx.core"),
        ("tinymlx/paths.py", "from tinymlx import hub"),
        ("tinymlx/utils/misc.py", ""),
    ],
)
def test_a_breach_is_found(path, code):
    assert len(violations({**OPS, path: code})) == 1


@pytest.mark.parametrize(
    "path, code",
    [
        (
            "tinymlx/kernels/head.py",
            "from tinymlx import ops\nfrom tinymlx.ops.linear import Linear\nfrom . import route",
        ),
        ("tinymlx/models/qwen3.py", "from tinymlx import cache, kernels, ops\nops.Linear, ops.dequantize"),
        ("tinymlx/train/loop.py", "from tinymlx import engine"),
        ("tinymlx/hub/gguf.py", "from tinymlx.errors import UserError\nimport mlx.core\nfrom . import source"),
        ("tinymlx/cli/doctor.py", "from tinymlx import blas, __version__\nfrom tinymlx.memory import machine"),
    ],
)
def test_an_allowed_import_is_not(path, code):
    assert violations({**OPS, path: code}) == []
