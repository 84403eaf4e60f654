"""Chat templates: Jinja programs that come with a model, so code from strangers, rendered in a sandbox.

    messages -> [template] -> "<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n"

The environment is the one that templates on the Hugging Face hub are written for: `trim_blocks`, `lstrip_blocks`, loop
controls, `{% generation %}`, `raise_exception`, `strftime_now`, and a `tojson` that escapes nothing.

The sandbox keeps templates away from Python's internals and from changing their input. Beyond that a render has a time
limit, checked at every turn of a loop and every call, and its strings and numbers a size limit. This stops accidents
and plain bombs; it is not a wall against a determined author, so take models from people you trust.
"""

import contextvars
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from tinymlx.errors import UserError

TIME_LIMIT_S = 10.0  # a long conversation renders in milliseconds
SIZE_LIMIT = 8 << 20  # characters of a string, elements of a list
INTEGER_LIMIT = 1_000_000  # widths and counts handed to functions

Message = Mapping[str, Any]


class ChatTemplate:
    """One template, compiled at the first render.

    >>> template = ChatTemplate("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}")
    >>> template.render([{"role": "user", "content": "Hi"}])
    '[user] Hi'
    """

    def __init__(self, source: str, origin: str = "chat template"):
        """origin: where the template came from, for messages."""
        self.source = source
        self.origin = origin
        self._compiled: jinja2.Template | None = None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt text of a conversation.

        messages: dicts with "role" and "content" (text, or a list of {"type": "text", "text": ...} parts), optionally
        "reasoning_content", "tool_calls" and whatever else the template reads. Keys whose value is None count as
        absent, as clients send `content: null` and templates would print "None". variables: enable_thinking, bos_token.

        Raises UserError, in one line, for a conversation of the wrong form and for a template that is broken, objects,
        or is stopped.
        """
        values = {
            "messages": [_message(message, index) for index, message in enumerate(_list(messages, "messages"))],
            "tools": _objects(tools, "tools"),
            "documents": _objects(documents, "documents"),
            "add_generation_prompt": bool(add_generation_prompt),
            **{name: _plain(value, name) for name, value in variables.items()},
        }
        deadline = _DEADLINE.set(time.monotonic() + TIME_LIMIT_S)
        try:
            if self._compiled is None:
                self._compiled = _compile(self.source)
            return self._compiled.render(values)
        except _Objection as objection:
            raise UserError(f"{self.origin}: {_one_line(objection)}") from None
        except jinja2.TemplateSyntaxError as error:
            raise UserError(f"{self.origin}, line {error.lineno}: {_one_line(error)}") from None
        except SecurityError as error:
            raise UserError(f"{self.origin}: refused: {_one_line(error)}") from None
        except (RecursionError, MemoryError):
            raise UserError(f"{self.origin}: refused: it calls itself without end, or needs too much memory") from None
        except Exception as error:  # a template is a program: it can fail in any way that Python can
            line = f"cannot render this conversation: {_one_line(error)} ({type(error).__name__})"
            raise UserError(f"{self.origin}: {line}; check the messages, or use --raw") from None
        finally:
            _DEADLINE.reset(deadline)


class _Objection(Exception):
    """What a template says through raise_exception."""


def _one_line(error: BaseException) -> str:
    return "".join(c for c in " ".join(str(error).split()) if c.isprintable())[:300]


# The input: plain JSON values only, so that no method of a richer object is within a template's reach.


def _plain(value: Any, where: str) -> Any:
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {_plain(key, where): _plain(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    raise UserError(f"{where} holds a {type(value).__name__}; only what JSON can say is accepted")


def _list(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise UserError(f"{where} must be a list, not {type(value).__name__}")
    return value


def _objects(value: Any, where: str) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    for index, item in enumerate(_list(value, where)):
        if not isinstance(item, Mapping):
            raise UserError(f"{where}[{index}] must be an object, not {type(item).__name__}")
    return _plain(value, where)


def _message(message: Any, index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise UserError(f"{where} must be an object with role and content, not {type(message).__name__}")
    plain = {key: value for key, value in _plain(message, where).items() if value is not None}
    if not isinstance(plain.get("role"), str):
        raise UserError(f"{where} has no role; say system, user, assistant or tool")
    if "content" in plain:
        plain["content"] = _text(plain["content"], f"{where}.content")
    elif plain.get("tool_calls"):
        plain["content"] = ""  # an answer that is nothing but calls; templates add its content to strings
    else:
        raise UserError(f"{where} has no content")
    # Names that other servers give the same thing. The first is the one templates read.
    for name in ("reasoning_content", "thinking", "reasoning"):
        if name in plain:
            plain["reasoning_content"] = _text(plain[name], f"{where}.{name}")
            break
    return plain


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UserError(f"{where} must be text, not {type(content).__name__}")
    for part in content:
        if not isinstance(part, dict) or part.get("type", "text") != "text" or not isinstance(part.get("text"), str):
            raise UserError(f"{where} has a part that is not text; this model reads text only")
    return "".join(part["text"] for part in content)


# The environment.

_DEADLINE: contextvars.ContextVar[float] = contextvars.ContextVar("deadline")


def _check_time() -> None:
    if time.monotonic() > _DEADLINE.get():
        raise SecurityError(f"it takes more than {TIME_LIMIT_S:g} s")


def _check_size(size: int) -> None:
    if size > SIZE_LIMIT:
        raise SecurityError(f"it builds something of {size} elements, more than {SIZE_LIMIT}")


def _sized(value: Any) -> Any:
    if isinstance(value, str | list | tuple):
        _check_size(len(value))
    return value


class _Timed:
    """An iterable that looks at the clock at every step. It stands for each loop's iterable (see `_compile`)."""

    def __init__(self, inner: Iterable[Any]):
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]  # TypeError where there is none: Jinja then counts by itself

    def __iter__(self) -> Iterator[Any]:
        for item in self._inner:
            _check_time()
            yield item


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's words for training; renders as its content."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%"])

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        # Jinja joins each block's output with this.
        pieces = list(pieces)
        _check_size(sum(map(len, pieces)))
        return "".join(pieces)

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_time()
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)  # Jinja wraps str.format
        if isinstance(owner, str):
            _check_widths((*args, *kwargs.values()), owner if function.__name__ in ("format", "format_map") else "")
        return _sized(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(left) <= INTEGER_LIMIT and abs(right) <= 64):
            raise SecurityError("it computes a huge power")
        if operator == "%" and isinstance(left, str):
            _check_widths(right if isinstance(right, tuple) else (right,), left)
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                    _check_size(len(sequence) * times)
        return _sized(super().call_binop(context, operator, left, right))


def _check_widths(arguments: Iterable[Any], layout: str = "") -> None:
    # "x".center(10 ** 9), "%999999999d" % 1, "{:999999999}".format(1)
    if re.search(r"[%{][^%{}]*\d{7}", layout) or any(isinstance(a, int) and abs(a) > INTEGER_LIMIT for a in arguments):
        raise SecurityError("it asks for millions of characters")


def _bounded(function: Any, takes_layout: bool) -> Any:
    """A Jinja filter whose widths are checked. The attributes by which Jinja hands it a context stay."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        layout = next((arg for arg in args if isinstance(arg, str)), "") if takes_layout else ""
        _check_widths((*args, *kwargs.values()), layout)
        return _sized(function(*args, **kwargs))

    checked.__dict__.update(function.__dict__)
    return checked


def _raise_exception(message: str) -> None:
    raise _Objection(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _PlainNamespace(Namespace):
    """Jinja's namespace() without names that begin with an underscore: those lead into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"it sets the namespace name {name!r}")


def _make_environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    for name in ("center", "format", "indent", "batch", "slice", "wordwrap", "truncate"):
        environment.filters[name] = _bounded(environment.filters[name], takes_layout=name == "format")
    environment.filters |= {"tojson": _tojson, "_timed": _Timed, "_sized": _sized}
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "namespace": _PlainNamespace,
        "dict": lambda *args, **kwargs: dict(*args, **kwargs),  # not the type itself, whose attributes lead on
    }
    del environment.globals["lipsum"]
    return environment


def _compile(source: str) -> jinja2.Template:
    """Compile with a clock in every loop and a measure on every `~`, put in as filters on the syntax tree."""
    environment = _make_environment()
    tree = environment.parse(source)
    for loop in tree.find_all(nodes.For):
        if loop.recursive:
            raise SecurityError("it has a recursive loop")
        loop.iter = _filtered(loop.iter, "_timed", environment)
    _measure_concatenations(tree, environment)
    return jinja2.Template.from_code(environment, environment.compile(tree), environment.make_globals(None))


def _filtered(node: nodes.Expr, name: str, environment: _Environment) -> nodes.Filter:
    wrapped = nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
    return wrapped.set_environment(environment)


def _measure_concatenations(node: nodes.Node, environment: _Environment) -> None:
    for field, value in node.iter_fields():
        if isinstance(value, nodes.Node):
            _measure_concatenations(value, environment)
            if isinstance(value, nodes.Concat):
                setattr(node, field, _filtered(value, "_sized", environment))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, nodes.Node):
                    _measure_concatenations(item, environment)
                    if isinstance(item, nodes.Concat):
                        value[index] = _filtered(item, "_sized", environment)
