"""The text of a kernel: what MLX would hand to Apple's compiler, and what of it a C++ compiler gets to see.

`trace` lets MLX write the kernel (signature, template arguments, shapes) as it would for a Mac. `parse` reads the
signature off that text. `translate` rewrites the preprocessed text where C++ has no words for Metal: threadgroup
variables, constants and swizzles.
"""

import ctypes
import os
import re
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from tinymlx.errors import UserError

_stdout = threading.Lock()  # file descriptor 1 is redirected for a moment
ADDRESS_SPACES = ("device", "constant", "thread", "threadgroup")


@dataclass(frozen=True)
class Parameter:
    """One parameter of the kernel. `attribute` is Metal's name for what the hardware supplies; None for a buffer."""

    type: str
    name: str
    attribute: str | None

    @property
    def is_reference(self) -> bool:
        return self.type.rstrip().endswith("&")


@dataclass(frozen=True)
class Composed:
    """A kernel ready to compile: its text with `#line` marks, the expression that names it, its parameters in order."""

    text: str
    function: str
    parameters: tuple[Parameter, ...]

    @property
    def buffers(self) -> list[Parameter]:
        return [p for p in self.parameters if p.attribute is None]


def trace(run: Callable[..., list[mx.array]], inputs: list[mx.array]) -> str:
    """The text that MLX composes when `run(*inputs)` calls a metal_kernel with verbose=True; nothing is computed."""
    libc = ctypes.CDLL(None)
    with _stdout, tempfile.TemporaryFile() as captured:
        libc.fflush(None)
        saved = os.dup(1)
        try:
            os.dup2(captured.fileno(), 1)
            mx.export_function(lambda _: None, lambda *xs: run(*xs), *inputs)
        finally:
            libc.fflush(None)
            os.dup2(saved, 1)
            os.close(saved)
        captured.seek(0)
        printed = captured.read().decode()
    found = re.search(r"^Generated source code for `.*`:\n```\n(.*)\n```$", printed, re.DOTALL | re.MULTILINE)
    assert found, "MLX printed no kernel"
    return found[1]


def mark_lines(text: str, header: str, source: str, header_name: str, source_name: str) -> str:
    """`#line` marks, so that whatever is reported carries the lines of the header's and of the source's own files."""
    start = text.index(header) if header else 0
    body = text.index(source, start + len(header))
    end = body + len(source)
    parts = [text[:start]]
    if header:
        parts += [f'#line 1 "{header_name}"\n', header]
    parts += ['\n#line 1 "signature"\n', text[start + len(header) : body]]
    parts += [f'\n#line 1 "{source_name}"\n', source, '\n#line 1 "signature"\n', text[end:]]
    return "".join(parts)


def parse(text: str, function: str | None = None) -> Composed:
    """Reads the signature of `function`, by default of the only kernel in the text.

    Raises UserError when there is none, or when it takes what the host does not give.
    """
    instance = re.search(
        r'^template \[\[host_name\("[^"]*"\)\]\] \[\[kernel\]\] decltype\((.*?)\) \1;', text, re.MULTILINE
    )
    expression = function
    if function is None and instance:
        expression = instance[1]
        function = expression.split("<")[0]
    text = re.sub(r"^template \[\[host_name\(.*$", "", text, flags=re.MULTILINE)
    bare = blank(text)
    names = re.findall(r"(?:\[\[\s*kernel\b.*?\]\]|\bkernel)\s+void\s+(\w+)\s*\(", bare)
    if function is None:
        if len(names) != 1:
            raise UserError(f"the text holds {len(names)} kernels ({', '.join(names) or 'none'}); name the one to run")
        function = expression = names[0]
    elif function.split("<")[0] not in names:
        raise UserError(f"no kernel {function} in the text, only {', '.join(names) or 'none'}; name one of these")
    start = re.search(rf"\bvoid\s+{function.split('<')[0]}\s*\(", bare).end()
    declared = bare[start : matching(bare, start)]
    for name, value in _bound(bare, expression).items():
        declared = re.sub(rf"\b{name}\b", value, declared)
    return Composed(text, expression, tuple(parameter(part) for part in split(declared)))


def _bound(text: str, expression: str) -> dict[str, str]:
    """What 'softmax<float, 4>' makes of the names in front of it, template <typename T, int N>: {"T": "float", "N": "4"}."""
    function, _, values = expression.partition("<")
    head = rf"\btemplate\s*<([^<>]*)>\s*(?:\[\[[^\]]*\]\]\s*|kernel\s+)+void\s+{function}\s*\("
    found = re.search(head, text)
    if found and not values:
        raise UserError(f"the kernel {function} is a template <{found[1]}>; name it with its arguments, as in {function}<float>")
    names = [part.split("=")[0].split()[-1] for part in split(found[1])] if found else []
    return dict(zip(names, map(str.strip, split(values.rstrip("> ")))))


def parameter(text: str) -> Parameter:
    """'const device float* a [[buffer(0)]]' -> Parameter('const device float*', 'a', None)."""
    attributes = re.findall(r"\[\[\s*(\w+)", text)
    declared = re.sub(r"\[\[.*?\]\]", "", text, flags=re.DOTALL).strip()
    found = re.fullmatch(r"(.*[\s*&])(\w+)", declared, re.DOTALL)
    if not found:
        raise UserError(
            f"cannot read the kernel parameter {' '.join(text.split())!r}; write it as: type name [[attribute]]"
        )
    kind = " ".join(found[1].split())
    if "threadgroup" in attributes:
        raise UserError(f"the kernel parameter {found[2]} is threadgroup memory; declare it inside of the kernel")
    is_buffer = "buffer" in attributes or "*" in kind or "&" in kind
    return Parameter(kind, found[2], None if is_buffer else attributes[0] if attributes else found[2])


def matching(text: str, start: int) -> int:
    """The index of the parenthesis that closes the one before `start`."""
    depth = 1
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    raise UserError("the kernel's parameter list has no end; check its parentheses")


def split(text: str) -> list[str]:
    """Parts between commas outside of brackets: 'a<b, c> x, d' -> ['a<b, c> x', 'd']."""
    parts, depth, begin = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "(<[") - (character in ")>]")
        if character == "," and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
    return [part for part in (*parts, text[begin:]) if part.strip()]


def blank(text: str) -> str:
    """Comments as spaces, so that positions stay."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda f: re.sub(r"[^\n]", " ", f[0]), text, flags=re.DOTALL)


def entry(composed: Composed) -> str:
    """C++ that calls the kernel as one thread, with its buffers cast to what the signature says."""
    arguments, buffer = [], 0
    for p in composed.parameters:
        if p.attribute is not None:
            arguments.append(f"host::attribute<{p.type}>(t.{p.attribute})")
            continue
        arguments.append(f"*({p.type.rstrip('& ')}*)b[{buffer}]" if p.is_reference else f"({p.type})b[{buffer}]")
        buffer += 1
    call = f"{composed.function}({', '.join(arguments)});"
    return f'#line 1 "signature"\nextern "C" void host_entry(void** b, const host::Attributes& t) {{ {call} }}\n'


SWIZZLE = re.compile(r"(\.|->)\s*([xyzw]{2,4}|[rgba]{2,4})\b(?!\s*\()(\s*=(?!=))?")
# `constant` is a const that may stand beside another one: const constant T&, static constant constexpr const int.
CONSTANT = re.compile(r"(?:\bconst\s+)?\bconstant\b(?:\s+constexpr\b)?(?:\s+const\b)?")
LINE_MARK = re.compile(r'^# (\d+) "([^"]*)"', re.MULTILINE)


def translate(preprocessed: str) -> str:
    """Preprocessed Metal -> C++. `threadgroup float s[32];` becomes guarded storage that all threads share."""

    def swizzle(found: re.Match) -> str:
        indices = ", ".join(str("xyzw".find(c) if c in "xyzw" else "rgba".find(c)) for c in found[2])
        return f"{found[1]}template swizzle{'_ref' if found[3] else ''}<{indices}>(){found[3] or ''}"

    text = SWIZZLE.sub(swizzle, preprocessed)
    text = re.sub(r"(\))\s*constant\b|\[\[function_constant\(\w+\)\]\](?=;)", lambda f: f[1] or "= {}", text)
    text = CONSTANT.sub(lambda f: re.sub(r"\b(const|constant)\b", "", f[0]) + " const ", text)
    out, position = [], 0
    for found in re.finditer(r"\bthreadgroup\b", text):
        if found.start() < position or text[found.end()] == "(":  # inside a declaration; an attribute
            continue
        out.append(text[position : found.start()])
        position = found.end()
        declaration = scratch_declaration(text, position)
        if declaration:
            kind, declarators, position = declaration
            file, line = place(text, found.start())
            out += [scratch(kind, *parts, file, line) for parts in declarators]
            out.append("\n" * text.count("\n", found.start(), position))
    return "".join(out) + text[position:]


def scratch_declaration(text: str, start: int) -> tuple[str, list[tuple[str, str]], int] | None:
    """What follows the word `threadgroup`, if it declares variables.

    -> (type, [(name, dimensions)], index after the `;`)
    """
    depth, angle = 0, 0
    for i in range(start, len(text)):
        c = text[i]
        if c in "([":
            depth += 1
        elif c in ")]":
            depth -= 1
        elif c == "<":
            angle += depth == 0
        elif c == ">":
            angle -= depth == 0
        scope = c == ":" and ":" in (text[i - 1], text[i + 1])  # typename Tile::type
        if depth < 0 or angle < 0 or (depth == 0 and angle == 0 and c in "*&{}=:" and not scope):
            return None  # a pointer, a parameter, a qualifier
        if c == ";":
            break
    else:
        return None
    declared = re.sub(r"\balignas\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", "", text[start:i])
    first, *rest = split(declared)
    found = re.fullmatch(r"(.*[\s>])(\w+)\s*((?:\[.*\])?)\s*", first, re.DOTALL)
    others = [re.fullmatch(r"\s*(\w+)\s*((?:\[.*\])?)\s*", part, re.DOTALL) for part in rest]
    if not found or not all(others):
        return None
    return found[1], [(found[2], found[3]), *((o[1], o[2]) for o in others)], i + 1


def scratch(kind: str, name: str, dimensions: str, file: str, line: int) -> str:
    kind, dimensions = " ".join(kind.split()), " ".join(dimensions.split())
    return (
        f"typedef {kind} host_type_{name}{dimensions}; static host::Scratch<host_type_{name}> host_{name}; "
        f'host_type_{name}& {name} = host::declare(host_{name}, "{name}", "{file}", {line}); '
    )


def place(text: str, position: int) -> tuple[str, int]:
    """(file, line) of an index in preprocessed text."""
    mark = None
    start = text.rfind("\n# ", 0, position)
    while start >= 0 and not (mark := LINE_MARK.match(text, start + 1)):
        start = text.rfind("\n# ", 0, start)
    if not mark:
        return "", 0
    return mark[2], int(mark[1]) + text.count("\n", mark.end(), position) - 1
