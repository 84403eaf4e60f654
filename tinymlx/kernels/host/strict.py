"""The strict pass: what Apple's compiler rejects and a CPU's does not mind.

Clang's C++ for OpenCL has the address spaces of Metal and most of its bans (double, virtual, function pointers, new).
The kernel is only parsed against strict.h, never compiled. Recursion and pointers without an address space are looked
for in the text. It does not know Metal's language versions.
"""

import functools
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tinymlx.errors import UserError
from tinymlx.kernels.host import compiler, compose
from tinymlx.kernels.host.compose import ADDRESS_SPACES, blank

NAMES = ("clang", *(f"clang-{version}" for version in range(22, 14, -1)))
LANGUAGE = ["-cc1", "-triple", "x86_64-linux", "-target-feature", "+sse2", "-x", "clcpp", "-cl-std=clc++2021", "-fsyntax-only", "-w"]
# With the generic address space, which copies of structures need; pointers that would be generic are `bare_pointer`s.
LANGUAGE += ["-cl-ext=-all,+cl_khr_fp16,+__opencl_c_generic_address_space"]
TYPES = r"(?:u?char|u?short|u?int|u?long|float|half|bfloat|bool)"
VECTOR = re.compile(rf"\b(?:({TYPES}[234])|((?:metal::)?vec<\s*\w+\s*,\s*\w+\s*>))\s*\((?!\s*[&*])")


@functools.cache
def clang() -> str:
    """A clang that knows C++ for OpenCL. Raises UserError when there is none."""
    for name in NAMES:
        if shutil.which(name) and not _diagnose(name, "kernel void f(__global float* x) { x[0] = 1.0f; }"):
            return name
    raise UserError("no clang of version 15 or later for the strict pass; install one (Debian: apt install clang-19)")


def _diagnose(name: str, text: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.clcpp")
        source.write_text(text)
        command = [name, *LANGUAGE, f"-I{compiler.HERE}", source.name]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True).stderr


def check(composed: compose.Composed) -> compiler.CompileError | None:
    """The first thing that Metal does not allow, or None. Not for text that includes MLX's headers."""
    found = recursion(composed.text) or bare_pointer(composed.text)
    if found:
        return found
    output = _diagnose(clang(), translate(composed))
    return compiler.first_error(output) if "error:" in output else None


def translate(composed: compose.Composed) -> str:
    """The composed text as C++ for OpenCL: no template around the kernel, no references among its parameters."""
    text = re.sub(r'#include\s*[<"][^>"]*[>"]', "", blank(composed.text))
    name, _, values = composed.function.partition("<")
    head = re.compile(
        r"(?:template\s*<([^<>]*)>\s*)?(?:\[\[\s*kernel\b.*?\]\]|\bkernel)\s+void\s+(\w+)\s*\(", re.DOTALL
    )
    for found in reversed(list(head.finditer(text))):
        if found[2] != name:
            continue
        end = compose.matching(text, found.end())
        parameters = [p.strip() for p in compose.split(found[1] or "")]
        bound = "".join(bind(p, v) for p, v in zip(parameters, compose.split(values.rstrip("> "))))
        declared, aliases = [], []
        for p in composed.parameters:
            kind = p.type.rstrip("& ") + "*" if p.is_reference else p.type
            declared.append(f"{kind} {p.name}{'_at' if p.is_reference else ''}")
            if p.is_reference:
                aliases.append(f"{p.type} {p.name} = *{p.name}_at; ")
        # OpenCL wants to know what the parameters point to, also where that is a template.
        pointed = {re.sub(r"\b(?:const|device|constant)\b|[*&]", "", p.type).strip() for p in composed.buffers} - {"void"}
        bound += "".join(f'static_assert(sizeof({kind}) > 0, ""); ' for kind in sorted(pointed))
        body = text.index("{", end) + 1
        signature = f"{bound}kernel void {name}({', '.join(declared)}) {{ {''.join(aliases)}"
        text = text[: found.start()] + signature + _line_of(text, body) + text[body:]
    text = VECTOR.sub(lambda f: f"construct<{f[1] or f[2]}>(", text)
    text = re.sub(r"(\d+\.\d*(?:[eE][-+]?\d+)?)h\b", r"half(\1f)", text)
    return f'#include "strict.h"\n{text}'


def bind(parameter: str, value: str) -> str:
    """'typename T', 'float' -> 'typedef float T; '"""
    kind, name = parameter.rsplit(None, 1)
    if kind in ("typename", "class"):
        return f"typedef {value.strip()} {name}; "
    return f"constexpr __constant {kind} {name} = {value.strip()}; "


def _line_of(text: str, position: int) -> str:
    """A mark that says again where `position` is, after lines have been put together."""
    mark = None
    for mark in re.finditer(r'^#line (\d+) "([^"]*)"$', text[:position], re.MULTILINE):
        pass
    if mark is None:
        return f"\n#line {text.count(chr(10), 0, position) + 1}\n"
    return f'\n#line {int(mark[1]) + text.count(chr(10), mark.end(), position) - 1} "{mark[2]}"\n'


def located(text: str, position: int, message: str) -> compiler.CompileError:
    found = re.match(r'\n#line (\d+)(?: "([^"]*)")?', _line_of(text, position))
    return compiler.CompileError(message, found[2] or "", int(found[1]))


def functions(text: str) -> list[tuple[str, int, int, int]]:
    """(name, start of the parameters, their end, end of the body) of each function defined in the text."""
    found = []
    for match in re.finditer(r"\b[\w>&*]+\s+(\w+)\s*\(", text):
        try:
            end = compose.matching(text, match.end())
        except UserError:
            continue
        if not re.match(r"\s*(?:const|thread|\s)*\{", text[end + 1 :]) or match[1] in ("if", "for", "while", "switch"):
            continue
        body = depth = text.index("{", end)
        depth = 0
        for i in range(body, len(text)):
            depth += {"{": 1, "}": -1}.get(text[i], 0)
            if depth == 0:
                break
        found.append((match[1], match.end(), end, i))
    return found


def recursion(text: str) -> compiler.CompileError | None:
    """A function that reaches itself by calls; names that are overloaded are left out."""
    text = blank(text)
    defined = functions(text)
    names = [name for name, *_ in defined]
    calls = {
        name: {
            other for other in re.findall(r"\b(\w+)\s*(?:<[^<>;]*>)?\s*\(", text[end:last]) if names.count(other) == 1
        }
        for name, _, end, last in defined
        if names.count(name) == 1
    }
    for name, start, *_ in defined:
        reached, todo = set(), list(calls.get(name, ()))
        while todo:
            other = todo.pop()
            if other not in reached:
                reached.add(other)
                todo += calls.get(other, ())
        if name in reached:
            return located(text, start, f"{name} calls itself; Metal has no recursion")
    return None


def bare_pointer(text: str) -> compiler.CompileError | None:
    """A pointer or reference declared without a word for its address space."""
    text = blank(text)
    types = {*re.findall(r"\b(?:typename|class)\s+(\w+)", text)}
    kind = rf"(?:{TYPES}[234]?|{'|'.join(sorted(types)) or 'T'})"
    for found in re.finditer(rf"([\w>\]]*)\s*(?<![\w:<])((?:const\s+)?{kind})\s*[*&]+\s*(\w+)\s*[=;,)\[]", text):
        before = text[: found.start(2)].rstrip()
        if (
            re.search(rf"\b(?:{'|'.join(ADDRESS_SPACES)}|return)(?:\s+const)?$", before)
            or re.search(r"[\w)\]]$", before)
            and not re.search(r"\bconst$", before)
        ):
            continue
        if not re.search(r"[;{}(,]$|^$|\bconst$|\*/$|\"$", before):
            continue
        return located(
            text, found.start(2), f"{found[3]} needs an address space: device, constant, threadgroup or thread"
        )
    return None
