"""A conversation: cached = uncached, chunked = whole, and its cache is right after whatever happened in between."""

import threading

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_config, tiny_weights

from tinymlx.cache import KVView
from tinymlx.engine import SamplingParams, Session, Stopped
from tinymlx.errors import UserError
from tinymlx.models.config import ModelConfig
from tinymlx.models.qwen3 import Qwen3

pytestmark = pytest.mark.capability("K/V kept between turns")

PROMPT = [3, 77, 12, 130, 5, 5, 60, 41, 9, 100, 2, 33, 7, 1, 0, 64, 18, 90, 23, 11, 8]


class Letters:
    """A tokenizer whose token 7 is "<7>"; enough of one for a session."""

    eos_token_ids = frozenset()
    vocab_size = 131

    class _Detokenizer:
        def add(self, token):
            return f"<{token}>"

        def finish(self):
            return ""

    def detokenizer(self, **_):
        return self._Detokenizer()


@pytest.fixture(scope="module")
def model():
    config = tiny_config()
    return Qwen3(ModelConfig.from_dict(config), {name: mx.array(w) for name, w in tiny_weights(config).items()})


def greedy(model, prompt, count):
    """The reference: no cache, the whole sequence again for every token."""
    tokens = list(prompt)
    for _ in range(count):
        hidden, _ = model(mx.array([tokens]), KVView.empty(1))
        tokens.append(mx.argmax(model.head(hidden)[0, -1]).item())
    return tokens[len(prompt) :]


def answer(session, prompt, count=8, **params):
    return [chunk.token for chunk in session.stream(prompt, SamplingParams(max_tokens=count, **params))]


@pytest.mark.parametrize("step", [1, 7, 16, 512])
@pytest.mark.parametrize("length", [1, 7, 16, 21])
def test_cached_and_chunked_equal_whole(model, step, length):
    session = Session(model, Letters(), prefill_step_size=step)
    assert answer(session, PROMPT[:length], 24) == greedy(model, PROMPT[:length], 24)


def test_next_turn_computes_only_what_is_new(model):
    session = Session(model, Letters())
    first = answer(session, PROMPT)
    longer = PROMPT + first + [44, 45]
    last = list(session.stream(longer, SamplingParams(max_tokens=8)))
    assert [chunk.token for chunk in last] == greedy(model, longer, 8)
    assert last[-1].stats.num_cached_tokens == len(PROMPT) + 7  # the last token drawn was never fed


def test_prompt_that_is_cached_already_is_answered_alike(model):  # case C02
    session = Session(model, Letters())
    first = answer(session, PROMPT)
    for prompt in (PROMPT, PROMPT + first[:-1], PROMPT[:5]):
        chunks = list(session.stream(prompt, SamplingParams(max_tokens=8)))
        assert [chunk.token for chunk in chunks] == greedy(model, prompt, 8)
        assert chunks[-1].stats.num_cached_tokens == len(prompt) - 1


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 21), st.integers(1, 6), st.integers(0, 6), st.integers(0, 130)), min_size=1, max_size=6
    )
)
@pytest.mark.full
def test_any_history_of_turns_gives_the_cold_answer(model, turns):
    """Prompts that share any prefix with the cache, answers stopped anywhere: the next one equals a fresh session's."""
    session = Session(model, Letters(), prefill_step_size=5)
    for length, count, taken, other in turns:
        prompt = [*PROMPT[:length], other]
        stream = session.stream(prompt, SamplingParams(max_tokens=count))
        got = [chunk.token for chunk, _ in zip(stream, range(taken))]
        stream.close()
        assert got == greedy(model, prompt, count)[: len(got)]
        assert sorted(session._pages + session._pool._free) == list(range(session._pool.num_pages))


def test_growing_pool_keeps_its_contents(model, monkeypatch):
    monkeypatch.setattr("tinymlx.engine.generate.FIRST_PAGES", 1)
    session = Session(model, Letters(), prefill_step_size=7)
    assert answer(session, PROMPT, 40) == greedy(model, PROMPT, 40)
    assert session._pool.num_pages > 1


def test_context_ends_the_answer(model):
    session = Session(model, Letters(), max_context=len(PROMPT) + 3)
    chunks = list(session.stream(PROMPT, SamplingParams(max_tokens=50)))
    assert len(chunks) == 3 and chunks[-1].finish_reason == "length"
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])


@pytest.mark.parametrize(
    "prompt, what", [([], "empty"), (PROMPT * 30, "630 tokens"), ([3, 131], "0..130"), ([-1], "0..130")]
)
def test_prompts_that_cannot_work(model, prompt, what):
    session = Session(model, Letters())
    with pytest.raises(UserError, match=what):
        answer(session, prompt)
    assert answer(session, PROMPT) == greedy(model, PROMPT, 8)


def test_end_token_and_stop_string(model):  # case C12, C31
    want = greedy(model, PROMPT, 8)
    session = Session(model, Letters(), eos_token_ids=[want[3]])
    chunks = list(session.stream(PROMPT, SamplingParams(max_tokens=50)))
    assert [c.finish_reason for c in chunks] == [None] * want.index(want[3]) + ["stop"]
    assert f"<{want[3]}>" not in "".join(c.text for c in chunks)
    assert len(answer(session, PROMPT, 8, ignore_eos=True)) == 8

    stop = f"{want[4]}><{want[5]}"  # across a token border
    chunks = list(session.stream(PROMPT, SamplingParams(max_tokens=50, stop=(stop,), ignore_eos=True)))
    whole = "".join(f"<{token}>" for token in want)
    assert "".join(c.text for c in chunks) == whole[: whole.index(stop)]
    assert chunks[-1].finish_reason == "stop"


def test_what_a_stop_string_held_back_is_not_lost(model):
    want = greedy(model, PROMPT, 4)
    session = Session(model, Letters())
    chunks = list(session.stream(PROMPT, SamplingParams(max_tokens=4, stop=(f"<{want[3]}>never",))))
    assert "".join(c.text for c in chunks) == "".join(f"<{token}>" for token in want)


def test_a_stop_string_that_the_end_decides_is_a_stop(model):
    """The short one lies inside the beginning of a longer one, which the answer's end rules out."""
    want = greedy(model, PROMPT, 3)
    short, longer = f"<{want[2]}>", f"{want[1]}><{want[2]}>never"
    session = Session(model, Letters())
    chunks = list(session.stream(PROMPT, SamplingParams(max_tokens=3, stop=(short, longer))))
    assert "".join(c.text for c in chunks) == f"<{want[0]}><{want[1]}>"
    assert chunks[-1].finish_reason == "stop"


def test_stopping_in_prefill_keeps_what_is_computed(model):
    session = Session(model, Letters(), prefill_step_size=5)

    def stop(done, total):
        if done >= 10:
            raise Stopped

    with pytest.raises(Stopped):
        list(session.stream(PROMPT, SamplingParams(), on_prefill=stop))
    assert session.num_cached_tokens == 10
    assert answer(session, PROMPT) == greedy(model, PROMPT, 8)


def test_a_failing_step_leaves_a_usable_session(model, monkeypatch):
    def fail(*args, **kwargs):
        raise MemoryError

    session = Session(model, Letters())
    answer(session, PROMPT)
    with monkeypatch.context() as patch:
        patch.setattr(Session, "_feed", fail)
        with pytest.raises(MemoryError):
            answer(session, PROMPT + [1])
    assert answer(session, PROMPT) == greedy(model, PROMPT, 8)


def test_logits_that_are_not_numbers_are_an_error(model):
    broken = Qwen3(model.config, {**model.weights, "model.norm.weight": mx.full(64, mx.nan)})
    session = Session(broken, Letters())
    with pytest.raises(UserError, match="position 21"):
        answer(session, PROMPT)


def test_padded_vocabulary_rows_are_never_drawn(model):
    class Short(Letters):
        vocab_size = 50

    prompt = [token for token in PROMPT if token < 50]
    for params in ({}, {"temperature": 5.0, "seed": 1}):
        assert max(answer(Session(model, Short()), prompt, 60, **params)) < 50


def test_model_loaded_in_one_thread_and_stepped_in_another(model):  # case C14
    session = Session(model, Letters())
    first, results = answer(session, PROMPT), []
    thread = threading.Thread(target=lambda: results.append(answer(session, PROMPT + first)))
    thread.start()
    thread.join()
    assert results == [greedy(model, PROMPT + first, 8)]


def test_seed_decides_the_draws_whatever_came_before(model):
    session = Session(model, Letters())
    first = answer(session, PROMPT, 20, temperature=1.0, seed=5)
    answer(session, PROMPT, 3, temperature=1.0, seed=6)
    mx.random.seed(1)
    assert answer(session, PROMPT, 20, temperature=1.0, seed=5) == first
    assert answer(session, PROMPT, 20, temperature=1.0, seed=7) != first


def test_logprobs_are_those_of_the_uncached_model(model):
    session = Session(model, Letters())
    chunks = list(session.stream(PROMPT, SamplingParams(max_tokens=5, logprobs=3)))
    hidden, _ = model(mx.array([PROMPT + [c.token for c in chunks]]), KVView.empty(1))
    logits = model.head(hidden)[0, len(PROMPT) - 1 : -1]
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    for chunk, row in zip(chunks, logprobs.tolist()):
        assert chunk.logprob == pytest.approx(row[chunk.token], abs=1e-5)
        assert [token for token, _ in chunk.top_logprobs] == sorted(range(131), key=lambda t: -row[t])[:3]


def test_one_answer_at_a_time(model):
    session = Session(model, Letters())
    stream = session.stream(PROMPT, SamplingParams(max_tokens=8))
    next(stream)
    with pytest.raises(RuntimeError, match="still answering"):
        answer(session, PROMPT)
    with pytest.raises(RuntimeError, match="still answering"):
        session.reset()
    stream.close()
    assert answer(session, PROMPT) == greedy(model, PROMPT, 8)


def test_prefill_can_be_stopped_within_a_chunk(model):
    """On a CPU a chunk takes seconds: progress comes layer by layer, and what is stopped there is still right afterwards."""
    if mx.default_device() != mx.cpu:
        pytest.skip("a GPU computes a chunk in one go")
    session = Session(model, Letters())
    calls = []

    def stop(done, total):
        calls.append((done, total))
        if done < total:
            raise Stopped

    with pytest.raises(Stopped):
        list(session.stream(PROMPT, SamplingParams(), on_prefill=stop))
    assert calls == [(len(PROMPT) // 2, len(PROMPT))]
    longer = PROMPT + [4, 5]
    assert answer(session, longer) == greedy(model, longer, 8)


@pytest.mark.parametrize(
    "options", [{"max_context": 0}, {"max_context": 1.5}, {"prefill_step_size": 0}, {"prefill_step_size": -1}]
)
def test_odd_sizes_are_refused(model, options):
    with pytest.raises(UserError, match="positive number of tokens"):
        Session(model, Letters(), **options)


def test_prompt_ids_of_numpy_are_numbers_and_floats_are_not(model):
    assert answer(Session(model, Letters()), np.array(PROMPT)) == greedy(model, PROMPT, 8)
    with pytest.raises(TypeError):
        answer(Session(model, Letters()), [1.5])
