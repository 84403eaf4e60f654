"""What a GPU does beyond a CPU, made to happen on a CPU: the compiled step, and the next step enqueued before the token is read."""

import shutil

import mlx.core as mx
import pytest
from test_session import PROMPT, Letters, answer, greedy
from tiny import tiny_config, tiny_weights

from tinymlx import kernels, ops
from tinymlx.cache import PagePool
from tinymlx.engine import SamplingParams, Session
from tinymlx.engine.step import Stepper
from tinymlx.models.config import ModelConfig
from tinymlx.models.qwen3 import Qwen3

compiles = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="mx.compile needs a C++ compiler on a CPU"
)
pytestmark = pytest.mark.capability("compiled and pipelined decoding")


@pytest.fixture(scope="module")
def model():
    config = tiny_config()
    loras = {"model.layers.0.self_attn.q_proj": ops.Lora(mx.ones((2, 64)) * 0.1, mx.ones((256, 2)) * 0.1, 0.5)}
    weights = {name: mx.array(w) for name, w in tiny_weights(config).items()}
    return Qwen3(ModelConfig.from_dict(config), weights, loras=loras)


@pytest.fixture
def on_gpu(monkeypatch):
    """Steps are compiled as on a GPU."""
    original = Stepper.__init__

    def init(self, model):
        original(self, model)
        self.on_gpu = True

    monkeypatch.setattr(Stepper, "__init__", init)
    monkeypatch.setenv("TINYMLX_KERNELS", "mlx")  # a CPU's own routes cannot be compiled


def cached_view(model, tokens):
    config = model.config
    pool = PagePool(config.num_hidden_layers, config.num_key_value_heads, config.head_dim, 8, mx.float32)
    pages = pool.allocate(pool.pages_for(len(tokens)))
    _, fresh = model(mx.array([tokens]), pool.view([[]], [0]))
    pool.write(fresh, [pages], [0], [len(tokens)])
    return pool.view([pages], [len(tokens)], 8)


@compiles
def test_the_compiled_step_equals_the_plain_one(model, on_gpu):
    stepper, view = Stepper(model), cached_view(model, PROMPT)
    for L in (1, 3):
        for logits in (True, False):
            tokens = mx.array([[5, 9, 2][:L]])
            got, fresh = stepper(tokens, view, logits)
            want, want_fresh = Stepper.run(model, tokens, view, logits)
            assert mx.abs(got - want).max().item() < 1e-5 * mx.abs(want).max().item()
            assert mx.abs(fresh[1][0] - want_fresh[1][0]).max().item() < 1e-5
    assert len(stepper._compiled) == 2


@compiles
def test_a_graft_is_never_served_by_another_ones_trace(model, on_gpu):
    stepper, view = Stepper(model), cached_view(model, PROMPT)
    for factor in (1.0, 2.0, 3.0, 4.0):  # a function of its own each time, gone before the next
        with kernels.graft(silu=lambda x, factor=factor: factor * x):
            got, _ = stepper(mx.array([[5]]), view, True)
            want, _ = Stepper.run(model, mx.array([[5]]), view, True)
            assert mx.abs(got - want).max().item() < 1e-5 * mx.abs(want).max().item(), factor


def test_table_widths_are_few_and_little_too_wide(model, on_gpu):
    stepper = Stepper(model)
    widths = [stepper.table_width(pages) for pages in range(1, 3000)]
    assert all(pages <= width <= max(1.25 * pages, pages + 7) for pages, width in enumerate(widths, 1))
    assert widths == sorted(widths) and len(set(widths)) < 50


@compiles
@pytest.mark.parametrize("step", [7, 512])
def test_a_pipelined_session_says_the_same(model, on_gpu, step):
    session = Session(model, Letters(), prefill_step_size=step)
    session.pipelined = True
    want = greedy(model, PROMPT, 12)
    assert answer(session, PROMPT, 12) == want
    end = Session(model, Letters(), eos_token_ids=[want[5]])
    end.pipelined = True
    first = answer(end, PROMPT, 50)
    assert first == want[: want.index(want[5]) + 1]
    longer = PROMPT + first + [44]  # the step enqueued beyond the end must not stay in the cache
    assert answer(end, longer, 6, ignore_eos=True) == greedy(model, longer, 6)
    stream = session.stream(PROMPT, SamplingParams(max_tokens=12))
    assert [next(stream).token for _ in range(4)] == want[:4]
    stream.close()
    assert answer(session, PROMPT + want[:2] + [3], 6) == greedy(model, PROMPT + want[:2] + [3], 6)


def test_pipelining_ends_where_it_copies_the_pool(model, monkeypatch):
    for peak, stays in ((0.25, True), (2.0, False)):
        session = Session(model, Letters())
        session.pipelined = True
        pool = session._pool.array.nbytes
        monkeypatch.setattr("tinymlx.engine.generate.mx.get_active_memory", lambda: 0)
        monkeypatch.setattr("tinymlx.engine.generate.mx.get_peak_memory", lambda: peak * pool)
        assert answer(session, PROMPT, 12) == greedy(model, PROMPT, 12)
        assert session._probed and session.pipelined is stays


def test_a_pool_that_grew_is_no_proof_of_copying(model, monkeypatch):
    monkeypatch.setattr("tinymlx.engine.generate.FIRST_PAGES", 1)
    session = Session(model, Letters())
    session.pipelined = True
    prompt = PROMPT[:14]  # the pool's one page is full two tokens later
    assert answer(session, prompt, 12) == greedy(model, prompt, 12)
    assert not session._probed and session.pipelined
