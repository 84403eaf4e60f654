"""The model against transformers: logits and greedy tokens of tiny random checkpoints, see golden/README.md.

And against itself: cached = uncached, prefill in chunks = whole, batched = alone, the twins = the fast routes.
"""

from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import tiny
from golden.cases import CASES, NEW_TOKENS, PROMPT_LENGTHS, rows_of

from tinymlx.cache import KVView, PagePool
from tinymlx.engine import SamplingParams, Session
from tinymlx.hub.checkpoint import open_checkpoint
from tinymlx.hub.source import resolve
from tinymlx.models.load import load_model

pytestmark = pytest.mark.capability("Qwen3, Qwen3-MoE, Qwen2 and Llama equal transformers")

DATA = Path(__file__).parent / "golden" / "data"
# Of the largest logit. transformers' own float32 is 2e-6 away from float64 (manifest.json); a GPU sums in other orders.
TOLERANCE = 1e-5 if mx.default_device() == mx.cpu else 1e-4
# One of each kind, for properties that `-m full` checks on every case.
KINDS = (
    "gqa2_hd128",
    "gqa8_hd64_tied",
    "padded_vocabulary",
    "yarn_rope_type",
    "sliding_window",
    "sliding_window_layer_types",
    "moe",
    "qwen2",
    "llama_biases",
)

every_case = pytest.mark.parametrize("name", CASES)
every_kind = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in KINDS else pytest.mark.full) for n in CASES]
)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """name -> model, loaded once through the front door."""

    @cache
    def load(name):
        case = CASES[name]
        folder = tmp_path_factory.mktemp(name)
        tiny.write_checkpoint(folder, model_type=case.model_type, seed=case.seed, **case.overrides)
        return load_model(open_checkpoint(resolve(str(folder))), dtype=mx.float32)

    return load


@cache
def golden(name):
    with np.load(DATA / f"{name}.npz") as arrays:
        return dict(arrays)


def prompt(name, length):
    case = CASES[name]
    vocab_size = tiny.tiny_config(case.model_type, **case.overrides)["vocab_size"]
    return tiny.prompt(length, case.sampled_vocab or vocab_size, case.seed)


def whole_path(name):
    """The longest prompt and its greedy answer, less the last token, which nothing follows."""
    return prompt(name, PROMPT_LENGTHS[-1]) + golden(name)["greedy"][:-1].tolist()


def uncached(model, tokens):
    """Logits [L, V] after every token, computed in one go without a cache."""
    hidden, _ = model(mx.array([tokens]), KVView.empty(1))
    return np.array(model.head(hidden)[0])


def in_chunks(model, tokens, chunk, page_size=16):
    """Logits [L, V] after every token, `chunk` tokens at a time through a pool whose free slots hold garbage."""
    config = model.config
    pool = PagePool(config.num_hidden_layers, config.num_key_value_heads, config.head_dim, 12, mx.float32, page_size)
    pool.array = mx.full(pool.array.shape, 1e4)
    pages, logits = pool.allocate(pool.pages_for(len(tokens)))[::-1], []
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        hidden, fresh = model(mx.array([part]), pool.view([pages[: pool.pages_for(start)]], [start]))
        logits.append(np.array(model.head(hidden)[0]))
        pool.write(fresh, [pages], [start], [len(part)])
    return np.concatenate(logits)


def assert_close(got, want):
    assert got.shape == want.shape
    error = np.abs(got - want).max() / np.abs(want).max()
    assert error < TOLERANCE, f"{error:.1e} of the largest logit"


class NoText:
    """A tokenizer for tests that read tokens only; ids from `vocab_size` on are rows of padding."""

    eos_token_ids = frozenset()

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def detokenizer(self):
        return self

    def add(self, token):
        return ""

    def finish(self):
        return ""


def test_every_case_has_values_and_a_path_that_rounding_cannot_move():
    assert {file.stem for file in DATA.glob("*.npz")} == set(CASES)
    for name in CASES:
        assert len(golden(name)["greedy"]) == NEW_TOKENS
        assert len(set(golden(name)["greedy"].tolist())) >= 12


@every_case
def test_logits(models, name):
    for length in PROMPT_LENGTHS:
        got = uncached(models(name), prompt(name, length))
        assert_close(got[list(rows_of(length))], golden(name)[f"logits_{length}"])


@every_kind
def test_logits_of_the_twins(models, name, monkeypatch):
    monkeypatch.setenv("TINYMLX_KERNELS", "reference")
    test_logits(models, name)
    tokens = whole_path(name)
    assert_close(in_chunks(models(name), tokens, 16)[-1], golden(name)["logits_last"])


@every_case
def test_greedy_tokens_uncached(models, name):
    """Each of the 64 is the best one after the tokens before it, all computed at once."""
    logits = uncached(models(name), whole_path(name))
    assert_close(logits[-1], golden(name)["logits_last"])
    sampled = logits[-NEW_TOKENS:, : CASES[name].sampled_vocab]
    assert sampled.argmax(axis=-1).tolist() == golden(name)["greedy"].tolist()


@every_kind
def test_greedy_tokens_of_a_session(models, name):
    """Prefill in chunks of 16, then one token at a time, through the engine; padded vocabulary rows are never drawn."""
    model, case = models(name), CASES[name]
    session = Session(model, NoText(case.sampled_vocab or model.config.vocab_size), prefill_step_size=16)
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    chunks = session.stream(prompt(name, PROMPT_LENGTHS[-1]), params)
    tokens = [chunk.token for chunk in chunks if chunk.token is not None]
    assert tokens == golden(name)["greedy"].tolist()


@pytest.mark.parametrize("chunk", [1, 7, 16])
@every_kind
def test_cached_equals_uncached(models, name, chunk):
    """Past the original context of YaRN and past every window: over 96 positions, or 48 one by one."""
    tokens = whole_path(name)[: 48 if chunk == 1 else None]
    assert_close(in_chunks(models(name), tokens, chunk), uncached(models(name), tokens))


@every_kind
def test_page_size_does_not_matter(models, name):
    tokens = whole_path(name)[:40]
    assert_close(in_chunks(models(name), tokens, 7, page_size=4), uncached(models(name), tokens))


@every_kind
def test_batched_equals_alone(models, name):
    """Prompts of 1, 7 and 33 tokens in one padded batch, then 8 greedy steps of all three over their cached pages."""
    model = models(name)
    config = model.config
    prompts = [prompt(name, length) for length in PROMPT_LENGTHS]
    lengths = list(PROMPT_LENGTHS)
    padded = np.zeros((len(prompts), max(lengths)), np.int32)
    for row, tokens in enumerate(prompts):
        padded[row, : len(tokens)] = tokens
    hidden, fresh = model(mx.array(padded), KVView.empty(len(prompts), mx.array(lengths)))
    logits = np.array(model.head(hidden))
    for row, length in enumerate(lengths):
        assert_close(logits[row, list(rows_of(length))], golden(name)[f"logits_{length}"])

    pool = PagePool(config.num_hidden_layers, config.num_key_value_heads, config.head_dim, 12, mx.float32)
    tables = [pool.allocate(pool.pages_for(length + 8)) for length in lengths]
    pool.write(fresh, tables, [0] * len(lengths), lengths)
    last = [np.stack([logits[row, length - 1] for row, length in enumerate(lengths)])]
    for _ in range(8):
        drawn = last[-1][:, : CASES[name].sampled_vocab].argmax(axis=-1)
        for row, token in enumerate(drawn.tolist()):
            prompts[row].append(token)
        hidden, fresh = model(mx.array(drawn[:, None]), pool.view(tables, lengths))
        last.append(np.array(model.head(hidden))[:, 0])
        pool.write(fresh, tables, lengths, [1] * len(lengths))
        lengths = [length + 1 for length in lengths]
    for row, tokens in enumerate(prompts):
        assert_close(np.stack(last)[:, row], uncached(model, tokens)[-9:])
