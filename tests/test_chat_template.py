"""Chat templates: what transformers renders, in a sandbox that bounds what a template can do."""

import itertools
import json
import tracemalloc
from datetime import datetime

import pytest
from one_line import fails
from small_tokenizers import qwen3_folder

from tinymlx.hub import chat_template
from tinymlx.hub.chat_template import ChatTemplate
from tinymlx.hub.source import ModelSource
from tinymlx.hub.tokenizer import load_tokenizer

pytestmark = pytest.mark.capability("tokenizers, chat templates, streamed text")

HI = [{"role": "user", "content": "Hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a <city> & 'more' – überall",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich <b>"}}}
CONVERSATIONS = {
    "one": HI,
    "system": [{"role": "system", "content": "Be brief."}, *HI],
    "turns": [*HI, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "And you?"}],
    "system within": [*HI, {"role": "system", "content": "Now in French."}, {"role": "user", "content": "Hi"}],
    "unicode": [{"role": "user", "content": "naïve 狐 😀\n\n  two  spaces\t"}],
    "template signs": [{"role": "user", "content": "{{ 1 }} {% if %} {# x #} <|im_end|>"}],
    "empty": [{"role": "user", "content": ""}],
    "thought": [
        *HI,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!"},
        {"role": "user", "content": "And you?"},
        {"role": "assistant", "content": "<think>\nwell\n</think>\n\nFine."},
    ],
    "reasoning": [*HI, {"role": "assistant", "content": "Hello!", "reasoning_content": "\nhm\n"}],
    "reasoning under another name": [*HI, {"role": "assistant", "content": "Hello!", "reasoning": "hm"}],
    "tool": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "reasoning_content": "I call.", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": '{"degrees": 20}'},
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "Nice.", "tool_calls": None, "name": None},
        {"role": "user", "content": "<tool_response>\nx\n</tool_response>"},
    ],
    "arguments as text": [
        *HI,
        {"role": "assistant", "content": "Let me see.", "tool_calls": [{"name": "f", "arguments": '{"a": 1}'}]},
        {"role": "tool", "content": "1"},
    ],
    "broken arguments": [*HI, {"role": "assistant", "content": "x", "tool_calls": [{"name": "f", "arguments": "{a"}]}],
}


def render(source: str, messages=HI, **options) -> str:
    return ChatTemplate(source).render(messages, **options)


# Equal to transformers.


@pytest.fixture(scope="module")
def qwen3():
    return load_tokenizer(ModelSource("qwen3", qwen3_folder(), "safetensors"))


@pytest.fixture(scope="module")
def qwen3_transformers():
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(qwen3_folder())


def test_qwen3_equals_transformers(qwen3, qwen3_transformers):
    for name, messages in CONVERSATIONS.items():
        for tools, thinking, prompt in itertools.product((None, TOOLS), (None, True, False), (True, False)):
            options = {} if thinking is None else {"enable_thinking": thinking}
            options |= {"tools": tools, "add_generation_prompt": prompt}
            ours = qwen3.apply_chat_template(messages, **options)
            assert ours == qwen3_transformers.apply_chat_template(messages, tokenize=False, **options), (name, options)


def test_thinking_switched_off(qwen3):
    empty = "<think>\n\n</think>\n\n"
    assert qwen3.apply_chat_template(HI, enable_thinking=False).endswith(f"<|im_start|>assistant\n{empty}")
    assert qwen3.apply_chat_template(HI, enable_thinking=True).endswith("<|im_start|>assistant\n")
    assert qwen3.apply_chat_template(HI).endswith("<|im_start|>assistant\n")


def test_qwen3_tool_call_without_content(qwen3):
    """Clients send `content: null` with a call; this template adds content to strings."""
    calls = [{"name": "f", "arguments": {}}]
    for message in ({"content": None}, {}):
        got = qwen3.apply_chat_template([*HI, {"role": "assistant", "tool_calls": calls} | message])
        assert got == qwen3.apply_chat_template([*HI, {"role": "assistant", "tool_calls": calls, "content": ""}])


TEMPLATES = {
    "blocks": "{% for m in messages %}\n  {% if loop.first %}\nfirst\n  {% endif %}\n{{ m.role }}\n{% endfor %}\n",
    "loop": "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ loop.revindex }} {% endfor %}",
    "filtered loop": "{% for m in messages if m.role == 'user' %}{{ m.content }}{% else %}none{% endfor %}",
    "controls": "{% for m in messages %}{% if not m %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.role }}{% set x = 1 %}{% endgeneration %}{% endfor %}",
    "tojson": "{{ messages | tojson }} {{ messages | tojson(indent=2) }} {{ {'a': \"<'&é\"} | tojson }}",
    "json options": "{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=true) }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "macro": "{% macro show(m) %}[{{ m.role ~ ':' ~ m.content }}]{% endmacro %}{{ show(messages[0]) ~ show('') }}",
    "filters": "{{ messages | map(attribute='role') | join }}{{ messages | selectattr('role', 'eq', 'user') | list }}",
    "methods": "{{ messages[0].content.strip().split('i')[0].upper() + '%s-%d' % ('a', 1) }}{{ '{:>4}'.format('x') }}",
    "slices": "{% for m in messages[1:][::-1] %}{{ m.role }}{% endfor %}{{ messages[-1]['content'] | trim }}",
    "undefined": "{{ nothing }}{{ nothing is defined }}{{ messages[0].nothing }}",
    "variables": "{{ bos_token }}{{ custom_option }}{{ tools is none }}{{ documents }}{{ add_generation_prompt }}",
    "dict": "{{ dict(a=1) }}{% for k, v in {'x': 1, 'y': 2}.items() %}{{ k }}{{ v }}{% endfor %}{{ range(3) | list }}",
    "nested loops": "{% for m in messages %}{% for c in m.content %}{{ loop.index0 }}{{ c }}{% endfor %}{% endfor %}",
    "set block": "{% set x %}a{{ messages | length }}{% endset %}{{ x * 2 }}{{ 2 ** 3 }}{{ 7 % 4 }}{{ [1] + [2] }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("conversation", ["one", "turns", "unicode"])
def test_templates_equal_transformers(name, conversation):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = CONVERSATIONS[conversation]
    options = {"bos_token": "<s>", "custom_option": ["é", 1, None]}
    theirs, _ = utils.render_jinja_template([messages], chat_template=TEMPLATES[name], **options)
    assert render(TEMPLATES[name], messages, **options) == theirs[0]


# Without transformers.


def test_tojson_escapes_nothing():
    assert render("{{ {'a': '<é&\"'} | tojson }}") == '{"a": "<é&\\""}'


def test_the_date():
    before = datetime.now().strftime("%Y-%m-%d")
    assert before <= render("{{ strftime_now('%Y-%m-%d') }}") <= datetime.now().strftime("%Y-%m-%d")


def test_parts_of_text_are_joined():
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "Hello"


def test_documents_and_tools_arrive():
    source = "{{ tools[0].function.name }} {{ documents[0].title }}"
    assert render(source, tools=TOOLS, documents=[{"title": "T", "text": "x"}]) == "weather T"


def test_messages_are_not_changed():
    messages = [{"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "r"}]
    before = json.dumps(messages)
    render("{{ messages[0].content }}", messages)
    assert json.dumps(messages) == before


WRONG_INPUT = {
    "not a list": ("Hi", "messages must be a list, not str"),
    "a dict": ({"role": "user"}, "messages must be a list, not dict"),
    "not objects": (["Hi"], "messages[0] must be an object with role and content, not str"),
    "no role": ([*HI, {"content": "x"}], "messages[1] has no role"),
    "role of a number": ([{"role": 1, "content": "x"}], "messages[0] has no role"),
    "no content": ([{"role": "user"}], "messages[0] has no content"),
    "null": ([{"role": "user", "content": None}], "messages[0] has no content"),
    "content of a number": ([{"role": "user", "content": 5}], "messages[0].content must be text, not int"),
    "content an object": ([{"role": "user", "content": {"a": 1}}], "messages[0].content must be text, not dict"),
    "an image": (
        [{"role": "user", "content": [{"type": "image_url"}]}],
        "messages[0].content has a part that is not text",
    ),
    "part of a number": ([{"role": "user", "content": [5]}], "messages[0].content has a part"),
    "bytes": ([{"role": "user", "content": b"x"}], "messages[0] holds a bytes"),
    "an object of Python": ([{"role": "user", "content": "x", "extra": object()}], "messages[0] holds a object"),
    "reasoning of a number": ([{"role": "user", "content": "x", "reasoning": 1}], "messages[0].reasoning must be text"),
}


@pytest.mark.parametrize("case", WRONG_INPUT)
def test_messages_of_the_wrong_form(case):
    messages, words = WRONG_INPUT[case]
    fails(lambda: render("x", messages), words)


def test_options_of_the_wrong_form():
    fails(lambda: render("x", tools={"a": 1}), "tools must be a list")
    fails(lambda: render("x", tools=["a"]), "tools[0] must be an object")
    fails(lambda: render("x", documents=["a"]), "documents[0] must be an object")
    fails(lambda: render("x", colour=object()), "colour holds a object")


OBJECTIONS = {
    "syntax": ("\n{% if %}", "the origin, line 2: Expected an expression"),
    "unknown filter": ("{{ x | nothing }}", "the origin, line 1: No filter named 'nothing'"),
    "its own": ("{{ raise_exception('roles\nmust alternate') }}", "the origin: roles must alternate"),
    "a type": ("{{ messages[0].content + 1 }}", "cannot render this conversation"),
    "undefined": ("{{ a.b.c }}", "'a' is undefined"),
    "division": ("{{ 1 / 0 }}", "ZeroDivisionError"),
    "another file": ("{% include 'secret' %}", "the origin"),
}


@pytest.mark.parametrize("case", OBJECTIONS)
def test_a_template_that_objects_or_fails(case):
    source, words = OBJECTIONS[case]
    fails(lambda: ChatTemplate(source, "the origin").render(HI), words)


# Hostile templates.

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ joiner.__init__.__globals__.os }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ strftime_now.__code__.co_code }}",
    "{{ dict.mro() }}",
    "{{ dict.__globals__.x }}",
    "{{ (messages | attr('__class__')).x }}",
    "{{ [1] | map(attribute='__class__.__mro__') | first | length }}",
    "{{ '{0.__class__.__mro__}'.format(1).x.y }}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
    "{{ messages[0].pop('role') }}",
    "{{ self._TemplateReference__context.x }}",
    "{{ lipsum.__globals__ }}",
    "{% import 'os' as os %}{{ os }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_the_sandbox_holds(source):
    messages = [{"role": "user", "content": "Hi"}]
    fails(lambda: render(source, messages), "chat template")
    assert messages == HI


HUGE = [
    "{% for i in range(10 ** 9) %}{% endfor %}",
    "{{ 'a' * 10 ** 10 }}",
    "{{ 10 ** 10 * 'a' }}",
    "{{ [1] * 10 ** 9 }}",
    "{{ 'a'.ljust(10 ** 10) }}",
    "{{ 'a'.center(10 ** 10) }}",
    "{{ '%99999999999d' % 1 }}",
    "{{ '%*d' % (10 ** 10, 1) }}",
    "{{ '{:99999999999}'.format(1) }}",
    "{{ '%99999999999d' | format(1) }}",
    "{{ 'a' | center(10 ** 10) }}",
    "{{ 'a\nb' | indent(10 ** 10) }}",
    "{{ 9 ** 9 ** 9 }}",
    "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(s=[1, 2]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
]


@pytest.mark.parametrize("source", HUGE)
def test_bombs_are_refused(source):
    tracemalloc.start()
    try:
        fails(lambda: render(source), "chat template")
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


ENDLESS = [
    "{% set l = range(90000) | list %}{% for a in l %}{% for b in l %}{% endfor %}{% endfor %}",
    "{% set l = range(90000) | list %}{% for a in l %}{% for b in l if b < 0 %}{% endfor %}{% endfor %}",
    "{% set l = range(90000) | list %}{% for a in l %}{{ l | sum }}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}",
]


@pytest.mark.parametrize("source", ENDLESS)
def test_endless_templates_are_stopped(monkeypatch, source):
    monkeypatch.setattr(chat_template, "TIME_LIMIT_S", 0.2)
    fails(lambda: render(source), "chat template: refused: it takes more than 0.2 s")


def test_widths_within_reason_and_user_text_pass():
    assert (
        render("{{ 'a'.center(5) }}{{ '%5d' % 1 }}{{ '{:>5}'.format(1) }}{{ 'x' | center(3) }}") == "  a      1    1 x "
    )
    text = "100% of {1234567890} %99999999d"
    source = (
        "{{ 'say X'.replace('X', messages[0].content) }}{{ '%s' % messages[0].content }}{{ messages[0].content ~ 1 }}"
    )
    assert render(source, [{"role": "user", "content": text}]) == f"say {text}{text}{text}1"
