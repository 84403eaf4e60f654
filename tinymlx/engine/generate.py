"""One conversation: prefill in chunks, decode token by token, and keep its K/V for the next turn."""

import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from tinymlx import kernels
from tinymlx.cache import PAGE_SIZE, PagePool
from tinymlx.engine import loop
from tinymlx.engine.sampling import NO_TOKEN, Draw, Sampler, SamplingParams, unusable_logits
from tinymlx.engine.step import Stepper
from tinymlx.engine.stop import StopMatcher
from tinymlx.errors import UserError
from tinymlx.models.qwen3 import Qwen3

FIRST_PAGES = 64  # the pool of a conversation starts with 1,024 tokens and doubles


@dataclass
class Stats:
    """What one answer took. Times are wall-clock seconds; `prompt_s` is from the call to `stream` to the first token."""

    prompt_tokens: int = 0
    num_cached_tokens: int = 0
    prompt_s: float = 0.0
    generated_tokens: int = 0
    generation_s: float = 0.0
    weight_bytes_per_token: int = 0
    kv_bytes_per_token: int = 0
    context_tokens: int = 0
    peak_memory_bytes: int = 0

    @property
    def time_to_first_token_s(self) -> float:
        return self.prompt_s

    @property
    def prompt_tokens_per_s(self) -> float:
        """Prompt tokens computed, those already cached left out, over prefill time."""
        return (self.prompt_tokens - self.num_cached_tokens) / self.prompt_s if self.prompt_s else 0.0

    @property
    def generation_tokens_per_s(self) -> float:
        """Decode steps over their time: the first token comes from the prefill and is not counted."""
        return (
            (self.generated_tokens - 1) / self.generation_s if self.generation_s and self.generated_tokens > 1 else 0.0
        )

    @property
    def bytes_per_token(self) -> float:
        """Weights and K/V that decoding one token read, on average over the answer."""
        context = self.context_tokens - self.generated_tokens / 2  # its mean over the answer
        return self.weight_bytes_per_token + context * self.kv_bytes_per_token

    @property
    def bytes_per_s(self) -> float:
        """Weights and K/V read while decoding, over its time."""
        return self.generation_tokens_per_s * self.bytes_per_token


@dataclass
class Chunk:
    """Text that is now certain (may be empty), with the token that brought it. The last chunk has a finish_reason and stats."""

    text: str
    token: int | None = None
    logprob: float | None = None
    top_logprobs: list[tuple[int, float]] = field(default_factory=list)
    finish_reason: str | None = None  # "stop": end token or stop string; "length": max_tokens or the context's end
    stats: Stats | None = None


def check_prompt(prompt: Sequence[int], max_context: int, vocab_size: int) -> None:
    """Raises UserError for a prompt that is empty, leaves no room for an answer, or has ids outside the vocabulary."""
    if not prompt:
        raise UserError("the prompt is empty; give at least one token")
    if len(prompt) >= max_context:
        raise UserError(
            f"the prompt has {len(prompt)} tokens and the context holds {max_context} including the answer; "
            "shorten it, /reset the chat, or raise --max-kv-size where the model allows"
        )
    if not 0 <= min(prompt) <= max(prompt) < vocab_size:
        raise UserError(f"prompt token ids must lie in 0..{vocab_size - 1}; is this the model's own tokenizer?")


class _Probe:
    """Finds out whether pipelined steps make MLX copy the pool instead of writing in place: then memory grows by a pool."""

    STEPS = 4

    def __init__(self):
        self.steps, self.earlier_peak = 0, 0

    def before(self, pool: PagePool) -> None:
        if self.steps == 0:
            self.earlier_peak, self.active, self.pages = mx.get_peak_memory(), mx.get_active_memory(), pool.num_pages
            mx.reset_peak_memory()

    def after(self, pool: PagePool) -> bool | None:
        """Whether the pool is copied; None if it cannot be said yet, or not at all because the pool grew meanwhile."""
        self.steps += 1
        if self.steps != self.STEPS or self.pages != pool.num_pages:
            return None
        return mx.get_peak_memory() - self.active >= 0.75 * pool.array.nbytes


class Stopped(Exception):
    """Raised by `on_prefill` to end an answer before it begins; what is computed so far stays cached."""


class Session:
    """A conversation's tokens and their K/V. One answer at a time; not for use from two threads at once.

    max_context: most tokens of prompt and answer together; default the model's own limit.
    """

    def __init__(
        self,
        model: Qwen3,
        tokenizer: Any,
        *,
        eos_token_ids: Iterable[int] | None = None,
        max_context: int | None = None,
        prefill_step_size: int = 512,
    ):
        config = model.config
        for name, value in (("max_context", max_context), ("prefill_step_size", prefill_step_size)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UserError(f"{name} is {value!r}; a positive number of tokens is accepted")
        self.model, self.tokenizer = model, tokenizer
        self.eos_token_ids = frozenset({*config.eos_token_ids, *tokenizer.eos_token_ids, *(eos_token_ids or ())})
        self.max_context = min(max_context or config.max_context, config.max_context)
        self.prefill_step_size = prefill_step_size
        self._stepper = Stepper(model)
        self.pipelined = mx.default_device() == mx.gpu
        """Whether the next step is enqueued before this one's token is read, so that the device never waits for Python."""
        self._probed = self._rehearsed = False
        self._busy = False
        self._forget()

    def reset(self) -> None:
        """Forget the conversation. Raises RuntimeError while an answer is being streamed."""
        if self._busy:
            raise RuntimeError("this session is still answering; close that stream first")
        self._forget()

    def _forget(self) -> None:
        config = self.model.config
        pages = min(FIRST_PAGES, -(-self.max_context // PAGE_SIZE))
        self._pool = PagePool(
            config.num_hidden_layers, config.num_key_value_heads, config.head_dim, pages, self.model.dtype
        )
        self._tokens: list[int] = []  # fed to the model; K/V of all but the pending ones is in the pool
        self._pages: list[int] = []
        # K/V of the last step, which are not in the pool yet: every layer's, the first one's position, how many.
        self._pending: tuple[list[tuple[mx.array, mx.array]], int, int] | None = None

    @property
    def num_cached_tokens(self) -> int:
        return len(self._tokens)

    def stream(
        self, prompt: Sequence[int], params: SamplingParams, *, on_prefill: Callable[[int, int], None] | None = None
    ) -> Iterator[Chunk]:
        """Answer `prompt` (token ids of the whole conversation so far), chunk by chunk.

        What it has in common with the tokens already cached is not computed again. Closing the iterator stops the answer and keeps the cache. on_prefill:
        called with prompt tokens done and in all; may raise Stopped. Raises UserError for a prompt that is empty, too long, or has ids outside the vocabulary.
        """
        prompt = [operator.index(token) for token in prompt]
        check_prompt(prompt, self.max_context, self.model.config.vocab_size)
        if self._busy:
            raise RuntimeError("this session is still answering; close that stream first, or use another session")
        self._busy = True
        try:
            yield from self._stream(prompt, params, on_prefill)
        except (GeneratorExit, Stopped):
            raise
        except BaseException:
            self._forget()  # a step may have been cut in the middle
            raise
        finally:
            self._busy = False

    def _stream(
        self, prompt: list[int], params: SamplingParams, on_prefill: Callable[[int, int], None] | None
    ) -> Iterator[Chunk]:
        began = time.perf_counter()
        mx.reset_peak_memory()
        stats = Stats(
            prompt_tokens=len(prompt),
            num_cached_tokens=self._keep_common(prompt),
            weight_bytes_per_token=self.model.nbytes_per_token,
            kv_bytes_per_token=self.model.kv_nbytes_per_token,
        )
        kernels.prepare(None if self._rehearsed else lambda: self._rehearse(len(prompt), stats.num_cached_tokens))
        self._rehearsed = True
        sampler = Sampler([params], min(self.tokenizer.vocab_size, self.model.config.vocab_size))
        logits = self._prefill(prompt, stats.num_cached_tokens, on_prefill)
        draw, history = sampler.sample(logits, [len(prompt)], sampler.history([prompt]))
        mx.eval(draw.arrays())
        stats.prompt_s = time.perf_counter() - began
        probe = None if self._probed else _Probe()

        def advance(draw: Draw) -> Draw:
            nonlocal history
            if probe and self.pipelined:
                probe.before(self._pool)
            # Not pipelined, the draw has been read already, and its value costs nothing.
            value = NO_TOKEN if self.pipelined else draw.tokens.item()
            logits = self._feed(draw.tokens[:, None], [value], logits=True)
            upcoming, history = sampler.sample(logits, [len(self._tokens)], history)
            mx.async_eval(upcoming.arrays(), self._pending[0])
            if probe and self.pipelined and (copies := probe.after(self._pool)) is not None:
                self._probed, self.pipelined = True, not copies
            return upcoming

        limit = min(params.max_tokens, self.max_context - len(prompt))
        detokenizer, stops = self.tokenizer.detokenizer(), StopMatcher(params.stop)
        decoding = time.perf_counter()
        for draw in loop.decode(advance, draw, limit, lambda: self.pipelined):
            token, logprob, top_logprobs = draw.read()[0]
            position = len(prompt) + stats.generated_tokens
            if token == NO_TOKEN:
                raise unusable_logits(position)
            if len(self._tokens) > position:
                self._tokens[position] = token  # fed before it was known
            stats.generated_tokens += 1
            last = stats.generated_tokens == limit
            ended = token in self.eos_token_ids and not params.ignore_eos
            text, _ = stops.add("" if ended else detokenizer.add(token))
            if ended or last:
                text += stops.add(detokenizer.finish())[0] + stops.finish()
            finish = "stop" if ended or stops.stopped else "length" if last else None
            if finish is None:
                yield Chunk(text, token, logprob, top_logprobs)
                continue
            stats.generation_s = time.perf_counter() - decoding
            stats.context_tokens = position + 1
            stats.peak_memory_bytes = max(probe.earlier_peak if probe else 0, mx.get_peak_memory())
            yield Chunk(text, token, logprob, top_logprobs, finish, stats)
            return

    def _keep_common(self, prompt: list[int]) -> int:
        """Cut the cache back to what it shares with `prompt`, less its last token, whose logits are needed. Returns what is kept."""
        common = loop.shared_prefix(prompt, self._tokens)
        if self._pending is not None:
            fresh, start, count = self._pending
            self._pending = (fresh, start, min(count, common - start)) if common > start else None
        self._flush()
        del self._tokens[common:]
        unused = self._pool.pages_for(common)
        self._pool.free(self._pages[unused:])
        del self._pages[unused:]
        return common

    def _prefill(self, prompt: list[int], start: int, on_prefill: Callable[[int, int], None] | None) -> mx.array:
        """Logits [1, V] after the last token of `prompt`, of which `start` tokens are cached."""

        def feed(chunk: list[int], last: bool) -> mx.array:
            done = len(self._tokens)
            out = self._feed(mx.array([chunk]), list(chunk), logits=last)
            fresh = self._pending[0]
            if mx.default_device() == mx.cpu:
                # Layer by layer, so that Ctrl-C and progress do not wait for a chunk of many seconds.
                for layer, kv in enumerate(fresh[:-1], 1):
                    mx.eval(kv)
                    if on_prefill:
                        on_prefill(done + len(chunk) * layer // len(fresh), len(prompt))
            mx.eval(out, fresh)
            if on_prefill:
                on_prefill(len(self._tokens), len(prompt))
            return out

        return loop.prefill(feed, prompt, start, self.prefill_step_size)

    def _rehearse(self, tokens: int, cached: int) -> None:
        """Build, and drop, the graphs of the first chunk of a prompt and of the first decode step: which kernels they ask for."""
        for start, count in ((cached, min(tokens - cached, self.prefill_step_size)), (tokens, 1)):
            pages = self._pool.pages_for(start)
            view = self._pool.view([[0] * pages], [start], self._stepper.table_width(pages))
            self._stepper.run(self.model, mx.zeros((1, count), mx.int32), view, logits=True)

    def _feed(self, tokens: mx.array, values: list[int], logits: bool) -> mx.array:
        """Run the model on the conversation's next tokens [1, L]. Returns the last one's logits [1, V], or its hidden state [1, 1, K]."""
        self._flush()
        start, count = len(self._tokens), len(values)
        view = self._pool.view([self._pages], [start], self._stepper.table_width(len(self._pages)))
        out, fresh = self._stepper(tokens, view, logits)
        self._pending = (fresh, start, count)
        self._tokens.extend(values)
        return out

    def _flush(self) -> None:
        """Write the last step's K/V to the pool: first thing of a step, when nothing reads the pool any more, so that it is in place."""
        if self._pending is None:
            return
        fresh, start, count = self._pending
        self._pending = None
        needed = self._pool.pages_for(start + count) - len(self._pages)
        if needed > self._pool.num_free:
            most = self._pool.pages_for(self.max_context)
            self._pool.grow(min(max(2 * self._pool.num_pages, len(self._pages) + needed), most))
        self._pages.extend(self._pool.allocate(max(needed, 0)))
        self._pool.write(fresh, [self._pages], [start], [count])
