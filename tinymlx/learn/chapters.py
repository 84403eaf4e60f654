"""What can be read out of a chapter's README.md: hints, code blocks, snippets of the product."""

import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tinymlx import paths
from tinymlx.learn import metal_text
from tinymlx.learn.days import Day

_HINT = re.compile(r"<details>\s*<summary>Task (\d+), hint (\d+)</summary>(.*?)</details>", re.DOTALL)
_BLOCK = re.compile(r"^```(\w*)[ ]*(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
_SNIPPET = re.compile(r"(<!-- product: ([\w.]+) -->\n)```(python|metal)\n(?:.*\n)*?```$", re.MULTILINE)


def hints(day: Day) -> dict[int, list[str]]:
    """Task -> its hints, the gentlest first. They stand folded in the chapter under "Task 2, hint 1"."""
    found: dict[int, dict[int, str]] = {}
    for task, level, text in _HINT.findall((day.folder / "README.md").read_text(encoding="utf-8")):
        found.setdefault(int(task), {})[int(level)] = text.strip()
    return {task: [texts[level] for level in sorted(texts)] for task, texts in found.items()}


@dataclass(frozen=True)
class Block:
    language: str
    options: str
    text: str
    line: int


def blocks(chapter: Path) -> Iterator[Block]:
    """The fenced blocks of a chapter, in order."""
    text = chapter.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        yield Block(match[1], match[2].strip(), match[3], text.count("\n", 0, match.start()) + 1)


def with_snippets(text: str) -> str:
    """A chapter in which each block under `<!-- product: tinymlx.cache.pool.page_slots -->` is the source of that function or class.

    Under `<!-- product: metal_kernels.include.dot.share -->` it is a block of ```metal, that function of include/dot.metal.
    """
    return _SNIPPET.sub(lambda match: f"{match[1]}```{match[3]}\n{source_of(match[2])}```", text)


def source_of(name: str) -> str:
    """The source of the product's `name`, a dotted path."""
    package, _, inner = name.partition(".")
    if package == "metal_kernels":
        file, _, function = inner.rpartition(".")
        text = (paths.metal_kernels() / f"{file.replace('.', '/')}.metal").read_text(encoding="utf-8")
        return "".join(f"{part.text}\n" for part in metal_text.functions_of(text)[function])
    return inspect.getsource(pkgutil.resolve_name(name))
