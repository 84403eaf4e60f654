"""Functions in Metal text, found by their braces: no compiler is asked, so half-written files can be read too."""

import functools
import re
import zlib
from dataclasses import dataclass

_ASIDE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*""",
    re.DOTALL | re.MULTILINE,
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_MARKER = re.compile(r'static_assert\s*\(\s*false\s*,\s*"([^"]*)"\s*\)')
_INCLUDE = re.compile(r'^#include "([^"\n]*)".*$', re.MULTILINE)


@dataclass(frozen=True)
class Function:
    """One definition: text[start:end] of its file, with its `template` line and the comment right above it.

    message: of the `static_assert(false, "...")` that marks it as not written yet; None where there is none.
    """

    name: str
    text: str
    start: int
    end: int
    line: int
    signature: str
    message: str | None

    @property
    def parameters(self) -> list[str]:
        arguments = self.signature.partition(f"{self.name}(")[2]
        return re.findall(r"(\w+)\)?(?:\[[^\]]*\])*(?=[,)])", arguments)


@functools.lru_cache(64)  # the same files for every test
def functions_of(text: str) -> dict[str, list[Function]]:
    """The functions at the top of a file, by name; overloads in order. Raises SyntaxError for braces that do not match."""
    bare = _blanked(text, _ASIDE)
    found: dict[str, list[Function]] = {}
    begin = 0
    while mark := re.compile("[{};]").search(bare, begin):
        end = mark.end()
        if mark[0] == "}":
            raise _error("a } that closes nothing", text, mark.start())
        if mark[0] == "{":
            end = _closing(bare, mark.start(), text)
            if name := _function_name(head := bare[begin : mark.start()]):
                first = begin + len(head) - len(head.lstrip())
                start = _with_comment(text, begin, first)
                marker = _MARKER.search(_blanked(text[mark.start() : end], _COMMENT))
                signature = re.sub(r"\s*([^\w\s])\s*", r"\1", " ".join(head.split()))
                line = text.count("\n", 0, start) + 1
                function = Function(name, text[start:end], start, end, line, signature, marker and marker[1])
                found.setdefault(name, []).append(function)
        begin = end
    return found


def _blanked(text: str, pattern: re.Pattern) -> str:
    """Spaces in the place of what matches; lines and positions stay."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _error(what: str, text: str, at: int) -> SyntaxError:
    error = SyntaxError(what)
    error.lineno = text.count("\n", 0, at) + 1
    return error


def _closing(bare: str, opening: int, text: str) -> int:
    """The index behind the } of the { at `opening`."""
    depth = 0
    for mark in re.compile("[{}]").finditer(bare, opening):
        depth += 1 if mark[0] == "{" else -1
        if depth == 0:
            return mark.end()
    raise _error("a { that nothing closes", text, opening)


def _function_name(head: str) -> str | None:
    """What stands before a {: the name of the function that it begins, None for a struct or a list of values."""
    head = re.sub(r"\[\[.*?\]\]", " ", head, flags=re.DOTALL).strip()
    while re.match(r"template\s*<", head):
        depth = 0
        for mark in re.finditer("[<>]", head):
            depth += 1 if mark[0] == "<" else -1
            if depth == 0:
                break
        head = head[mark.end() :].strip()
    name = re.search(r"(\w+)\s*\(", head)
    if not name or "=" in head[: name.start()] or re.match(r"(struct|class|union|enum|namespace)\b", head):
        return None
    return name[1]


def _with_comment(text: str, begin: int, first: int) -> int:
    """Where the lines of // right above `first` begin, not before `begin`."""
    start = text.rfind("\n", begin, first) + 1 or first
    while start > begin:
        above = text.rfind("\n", begin, start - 1) + 1
        if above < begin or not text[above:start].lstrip().startswith("//"):
            break
        start = above
    return start


def includes(text: str) -> list[str]:
    """Names of the files in metal_kernels/include/ that a text asks for."""
    return _INCLUDE.findall(text)


@dataclass(frozen=True)
class Replacement:
    """What takes a function's place, and the rest of its file, both under `#line` marks that name file and line."""

    text: str
    helpers: str


def replacements(source: str, file: str, names: set[str], given: set[str]) -> dict[str, Replacement]:
    """The functions `names` of a file. Its helpers are all that is not of `given`; what they include comes before them."""
    label = file.replace("\\", "\\\\").replace('"', '\\"')
    found = functions_of(source)
    rest = source
    for function in (f for name in given & found.keys() for f in found[name]):
        blank = re.sub(r"[^\n]", " ", function.text)
        rest = rest[: function.start] + blank + rest[function.end :]
    included = "".join(f'#include "{name}"\n' for name in includes(rest))
    rest = _blanked(rest, _INCLUDE)
    helpers = f'{included}#line 1 "{label}"\n{rest}\n' if included or _blanked(rest, _COMMENT).strip() else ""
    return {
        name: Replacement("".join(f'#line {f.line} "{label}"\n{f.text}\n' for f in found[name]), helpers)
        for name in names
    }


def replaced(text: str, label: str, new: dict[str, Replacement]) -> str:
    """`text` of a file that is reported as `label`, with other functions in the place of its own; helpers come before the first."""
    spans = sorted((f.start, f.end, name, i) for name in new for i, f in enumerate(functions_of(text)[name]))
    parts, position = [], 0
    for start, end, name, overload in spans:
        parts.append(text[position:start])
        if position == 0 and new[name].helpers:  # once in a kernel, though several files of it may be replaced
            guard = f"TINYMLX_HELPERS_{zlib.crc32(new[name].helpers.encode())}"
            parts.append(f"\n#ifndef {guard}\n#define {guard}\n{new[name].helpers}#endif\n")
        if overload == 0:
            parts.append("\n" + new[name].text)
        parts.append(f'\n#line {text.count(chr(10), 0, end) + 1} "{label}"\n')
        position = end
    return "".join([*parts, text[position:]])
