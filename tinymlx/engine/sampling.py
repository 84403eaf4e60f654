"""From logits to tokens: penalties, filters, one draw a row, log-probabilities.

    logits [B, W] -> logit bias -> penalties -> temperature -> top-k -> top-p -> min-p -> draw -> token [B]

That is the order of Hugging Face transformers (`GenerationMixin._get_logits_processor`). vLLM (`v1/sample/sampler.py`)
has the same but for min-p, which it applies before top-k; mlx-lm has bias and penalties in the same order, but filters
before the temperature.

Three rules hold for every row of a batch:

- A row's token depends on that row alone (logits, parameters, seed, position), not on its neighbours. So rows are
  grouped by the work they need, none is widened to its neighbour's, and a row is always summed in the same blocks.
- A draw is a function of (seed, position). No generator has a state: a step can be repeated, skipped or regrouped.
- Nothing is read back from the device before `Draw.read`, so that the next step can be enqueued first.
"""

import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import NamedTuple

import mlx.core as mx

from tinymlx.engine.stop import check_stops
from tinymlx.errors import UserError

NO_TOKEN = -1
"""Drawn where no token can be: the largest logit is NaN or infinite. The caller raises `unusable_logits`."""

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy, as in vLLM: float32 has nothing left between the largest logit and the next."""

_FLOAT32_MAX = 3.4e38  # infinite ones would make NaN of -inf
_BLOCK = 128  # lanes summed in one go: a row of 151,936 is 1,187 blocks
_NARROWEST = 16  # rows of 16 lanes and more fill whole vectors, so that a row's rounding does not depend on its place


@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled. Raises UserError, naming the parameter, for values outside the range given here."""

    temperature: float = 0.0
    """0 or more; 0 takes the most likely token (of equals, the lowest id)."""
    top_p: float = 1.0
    """(0, 1]: keep the fewest most likely tokens whose probabilities reach it; 1 keeps all."""
    top_k: int = 0
    """Keep the k most likely tokens; 0, or the vocabulary's size and more, keeps all."""
    min_p: float = 0.0
    """[0, 1]: keep tokens at least this many times as likely as the most likely one."""
    repetition_penalty: float = 1.0
    """Above 0. Logits of recent tokens, prompt included, are divided by it (negative ones multiplied); 1 is off."""
    repetition_context_size: int = 20
    """How many last tokens are recent; 20 as in mlx-lm."""
    presence_penalty: float = 0.0
    """[-2, 2]: subtracted once from the logit of every token generated so far (not of the prompt's)."""
    frequency_penalty: float = 0.0
    """[-2, 2]: subtracted for each time a token was generated so far."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Token id -> number from -100 to 100 added to its logit, or -inf to rule it out."""
    seed: int | None = None
    """A 64-bit integer, signed or unsigned (-1 is 2^64 - 1); None draws one."""
    logprobs: int | None = None
    """Log-probabilities: None for none, 0 for the chosen token's, n for the n most likely ones' too."""
    max_tokens: int = 256
    """1 or more."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these."""
    ignore_eos: bool = False
    """Go on after an end-of-sequence token."""

    def __post_init__(self):
        checked = {
            "temperature": _number("temperature", self.temperature, 0, _FLOAT32_MAX, "a number of 0 or more"),
            "top_p": _number("top_p", self.top_p, 0, 1, "a number above 0 and at most 1", above=True),
            "top_k": min(_integer("top_k", self.top_k, 0, None, "0 (off) or a positive integer"), _MANY),
            "min_p": _number("min_p", self.min_p, 0, 1, "a number from 0 to 1"),
            "repetition_penalty": _number(
                "repetition_penalty", self.repetition_penalty, 0, _FLOAT32_MAX, "a number above 0", above=True
            ),
            "repetition_context_size": min(
                _integer("repetition_context_size", self.repetition_context_size, 1, None, "a positive integer"), _MANY
            ),
            "presence_penalty": _number("presence_penalty", self.presence_penalty, -2, 2, "a number from -2 to 2"),
            "frequency_penalty": _number("frequency_penalty", self.frequency_penalty, -2, 2, "a number from -2 to 2"),
            "logit_bias": _check_bias(self.logit_bias),
            "max_tokens": _integer("max_tokens", self.max_tokens, 1, None, "a positive integer"),
            "stop": check_stops(self.stop),
        }
        if self.seed is not None:
            checked["seed"] = _integer("seed", self.seed, -(2**63), 2**64 - 1, "a 64-bit integer")
        if self.logprobs is not None:
            checked["logprobs"] = _integer("logprobs", self.logprobs, 0, None, "0 or a positive integer")
        if not isinstance(self.ignore_eos, bool):
            raise UserError(f"ignore_eos is {self.ignore_eos!r}; true or false is accepted")
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken without a draw."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


class History(NamedTuple):
    """What the penalties know of each row's past, on the device. None where no row of the batch needs it."""

    recent: mx.array | None  # [B, N] int32, last tokens of prompt and output, newest last, NO_TOKEN before the first
    counts: mx.array | None  # [B, V] int32, how often each token was generated


class Token(NamedTuple):
    """One drawn token on the host. `token` is NO_TOKEN if the row's logits were unusable: raise `unusable_logits`."""

    token: int
    logprob: float | None
    top_logprobs: list[tuple[int, float]]  # most likely first; of equals, the lowest id first


class Draw(NamedTuple):
    """One step's tokens, still on the device. `tokens` can be fed to the next step before anything is read."""

    tokens: mx.array  # [B] int32
    logprob_rows: tuple[int, ...]  # the R rows that asked for log-probabilities
    tops: tuple[int, ...]  # how many alternatives each of them asked for
    logprobs: mx.array | None  # [R] float32, of the drawn tokens
    top_ids: mx.array | None  # [R, N] int32
    top_logprobs: mx.array | None  # [R, N] float32

    def arrays(self) -> list[mx.array]:
        """The arrays to hand to `mx.async_eval`."""
        return [a for a in (self.tokens, self.logprobs, self.top_ids, self.top_logprobs) if a is not None]

    def read(self) -> list[Token]:
        """Waits for the step and returns a Token for each row."""
        mx.eval(self.arrays())
        read = [Token(token, None, []) for token in self.tokens.tolist()]
        if self.logprobs is None:
            return read
        logprobs = self.logprobs.tolist()
        ids, values = ([], []) if self.top_ids is None else (self.top_ids.tolist(), self.top_logprobs.tolist())
        for i, row in enumerate(self.logprob_rows):
            top = list(zip(ids[i], values[i], strict=True))[: self.tops[i]] if ids else []
            read[row] = read[row]._replace(logprob=logprobs[i], top_logprobs=top)
        return read


def unusable_logits(position: int) -> UserError:
    """The error for a row that drew NO_TOKEN at `position`."""
    return UserError(
        f"no token can be drawn at position {position}: the model's logits are NaN or infinite, or logit_bias rules "
        "out every token; try another checkpoint or dtype, or a smaller logit_bias"
    )


class Sampler:
    """Draws the next token of every row of a batch, each row with its own parameters.

    >>> sampler = Sampler([SamplingParams(), SamplingParams(temperature=0.7, top_k=20, seed=1)], vocab_size=4)
    >>> history = sampler.history([[0, 3], [0, 3, 2]])
    >>> draw, history = sampler.sample(mx.array([[1.0, 5, 2, 0], [9.0, 1, 1, 0]]), [2, 3], history)
    >>> [row.token for row in draw.read()]
    [1, 0]

    `vocab_size` counts the ids that may be drawn. Logits can be wider (padded rows of the embedding): what lies beyond
    is never drawn, counted or looked at. Logits of any float dtype are computed with in float32.

    Ties: of equal logits the lowest id is the more likely one, for greedy rows, top-k, top-p and log-probabilities.

    Cost: a greedy row takes an argmax and a maximum; top-k sorts k blocks of the row; only top-p without a small top-k
    sorts the whole row. What no row asks for costs nothing.

    Raises UserError for a `logit_bias` id that the model does not have.
    """

    def __init__(self, params: Sequence[SamplingParams], vocab_size: int):
        self.params = tuple(params)
        self.vocab_size = vocab_size
        self.seeds = tuple(secrets.randbits(64) if p.seed is None else p.seed for p in self.params)
        """The seeds in use, drawn ones too: with them a run can be repeated."""
        self._bias = _bias_arrays(self.params, vocab_size)
        self._repetition = self._windows = self._presence = self._frequency = None
        if any(p.repetition_penalty != 1 for p in self.params):
            self._repetition = _column([p.repetition_penalty for p in self.params])
            self._windows = [p.repetition_context_size if p.repetition_penalty != 1 else 0 for p in self.params]
        if any(p.presence_penalty or p.frequency_penalty for p in self.params):
            self._presence = _column([p.presence_penalty for p in self.params])
            self._frequency = _column([p.frequency_penalty for p in self.params])

        rows: dict[_Work, list[int]] = {}
        for row, p in enumerate(self.params):
            rows.setdefault(_work(p, vocab_size), []).append(row)
        self._groups = [_Group.of(work, members, self.params) for work, members in rows.items()]
        grouped = [row for members in rows.values() for row in members]
        self._order = mx.array([grouped.index(row) for row in range(len(grouped))])

        asking = [(row, min(p.logprobs, vocab_size)) for row, p in enumerate(self.params) if p.logprobs is not None]
        self._logprob_rows = tuple(row for row, _ in asking)
        self._tops = tuple(top for _, top in asking)

    def history(self, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]] | None = None) -> History:
        """Each row's past: its prompt and, if it joins in the middle of an answer, the tokens generated so far."""
        outputs = [()] * len(prompts) if outputs is None else outputs
        recent = counts = None
        if self._repetition is not None:
            # A prompt may hold ids that are never drawn; they have no logit to penalise.
            known = [
                [token if token < self.vocab_size else NO_TOKEN for token in (*prompt, *output)]
                for prompt, output in zip(prompts, outputs, strict=True)
            ]
            # A window larger than all tokens there can ever be needs no more slots than those.
            slots = max(
                min(window, len(row) + p.max_tokens)
                for window, row, p in zip(self._windows, known, self.params, strict=True)
            )
            recent = mx.array([([NO_TOKEN] * slots + row)[-slots:] for row in known], dtype=mx.int32)
        if self._presence is not None:
            counts = mx.zeros((len(outputs), self.vocab_size), dtype=mx.int32)
            generated = [(row, token) for row, output in enumerate(outputs) for token in output]
            if generated:
                rows, tokens = (mx.array(column) for column in zip(*generated, strict=True))
                counts = counts.at[rows, tokens].add(1)
        return History(recent, counts)

    def sample(self, logits: mx.array, positions: Sequence[int], history: History) -> tuple[Draw, History]:
        """Enqueues one draw for every row; evaluates nothing.

        logits [B, W], W >= vocab_size. positions [B]: the index that the new token will have in its row's sequence,
        prompt included, so the host knows it a step ahead. Returns the draw, and the history with it.
        """
        logits = logits[:, : self.vocab_size].astype(mx.float32)
        scores = self._penalise(logits, history)
        drawn = [self._draw(group, scores, positions) for group in self._groups]
        tokens = drawn[0] if len(drawn) == 1 else mx.concatenate(drawn)[self._order]
        return self._report(logits, tokens), _remember(history, tokens)

    def _penalise(self, scores: mx.array, history: History) -> mx.array:
        """Logit bias and penalties, [B, V]. A row without any keeps its logits to the bit."""
        if self._bias is not None:
            rows, ids, values = self._bias
            scores = scores.at[rows, ids].add(values)
        if self._repetition is not None:
            # Keskar et al. 2019 (CTRL), section 4.1; sign-aware as in transformers, vLLM and mlx-lm.
            slots = history.recent.shape[1]
            in_window = mx.arange(slots) >= slots - mx.array(self._windows)[:, None]
            known = in_window & (history.recent != NO_TOKEN)
            seen = mx.zeros((scores.shape[0], self.vocab_size + 1), dtype=mx.bool_)  # the last column is for no token
            seen = mx.put_along_axis(seen, mx.where(known, history.recent, self.vocab_size), mx.array(True), axis=-1)[
                :, : self.vocab_size
            ]
            penalised = mx.where(scores < 0, scores * self._repetition, scores / self._repetition)
            scores = mx.where(seen, penalised, scores)
        if self._presence is not None:
            # OpenAI API guide, "Frequency and presence penalties": mu[j] - c[j] * frequency - (c[j] > 0) * presence,
            # where c[j] is how often token j was sampled before: not the prompt's. vLLM counts the same; mlx-lm counts
            # the last 20 tokens, prompt included.
            scores = scores - history.counts * self._frequency - (history.counts > 0) * self._presence
        return scores

    def _draw(self, group: "_Group", scores: mx.array, positions: Sequence[int]) -> mx.array:
        """The tokens [R] of one group of rows. scores [B, V]."""
        if len(group.rows) < len(self.params):
            scores = scores[mx.array(group.rows)]
        if group.work.how == "greedy":
            return _or_no_token(mx.argmax(scores, axis=-1), mx.max(scores, axis=-1))

        weights, ids, peak = _filter(group, scores)
        pairs = [uniforms(self.seeds[row], positions[row]) for row in group.rows]
        token = pick(weights, mx.array(pairs, dtype=mx.float32))
        if ids is not None:
            token = mx.take_along_axis(ids, token[:, None], axis=-1)[:, 0]
        return _or_no_token(token, peak[:, 0])

    def _report(self, logits: mx.array, tokens: mx.array) -> Draw:
        """Adds the log-probabilities of the rows that asked, from the model's own logits [B, V].

        That is before bias, penalties and temperature: what the model thought, comparable between requests (vLLM's
        default `raw_logprobs`).
        """
        if not self._logprob_rows:
            return Draw(tokens, (), (), None, None, None)
        if len(self._logprob_rows) < len(self.params):
            rows = mx.array(self._logprob_rows)
            logits, chosen = logits[rows], tokens[rows]
        else:
            chosen = tokens
        logits = _pad(logits)
        norm = _log_sum_exp(logits)
        chosen = mx.take_along_axis(logits, mx.maximum(chosen, 0)[:, None], axis=-1) - norm
        top_ids = top_logprobs = None
        if most := max(self._tops):
            values, ids = _largest(logits, _bucket(most, logits.shape[-1]))
            top_ids, top_logprobs = ids[:, :most], values[:, :most] - norm
        return Draw(tokens, self._logprob_rows, self._tops, chosen[:, 0], top_ids, top_logprobs)


def uniforms(seed: int, position: int) -> tuple[float, float]:
    """Two independent uniform numbers in (0, 1) for one draw, a function of its arguments: a hash, no generator.

    Each is the middle of one of 2^23 equal cells, exact in float32 and never 0 or 1.
    """
    message = (seed % 2**64).to_bytes(8, "little") + position.to_bytes(8, "little")
    bits = int.from_bytes(hashlib.blake2b(message, digest_size=8).digest(), "little")
    return (2 * (bits >> 41) + 1) / 2**24, (2 * (bits % 2**23) + 1) / 2**24


class _Work(NamedTuple):
    """What a row needs; rows that need the same are drawn together."""

    how: str  # "greedy": argmax; "whole": a draw among all ids, in order of id; "ranked": among the largest, by rank
    width: int  # how many lanes of the row are drawn from


class _Group(NamedTuple):
    """The rows of a batch with one kind of work, and their parameters as columns [R, 1] float32."""

    work: _Work
    rows: tuple[int, ...]
    temperature: mx.array
    top_k: mx.array
    top_p: mx.array
    log_min_p: mx.array

    @staticmethod
    def of(work: _Work, rows: Sequence[int], params: Sequence[SamplingParams]) -> "_Group":
        members = [params[row] for row in rows]
        return _Group(
            work,
            tuple(rows),
            _column([p.temperature for p in members]),
            mx.array([[p.top_k or work.width] for p in members]),
            # Off is infinite: at 1, the last tokens could be lost to rounding.
            _column([p.top_p if p.top_p < 1 else math.inf for p in members]),
            _column([math.log(p.min_p) if p.min_p else -math.inf for p in members]),
        )


def _work(p: SamplingParams, vocab_size: int) -> _Work:
    whole = -(-vocab_size // _BLOCK) * _BLOCK
    if p.greedy:
        return _Work("greedy", whole)
    if 0 < p.top_k < vocab_size:
        return _Work("ranked", _bucket(p.top_k, whole))
    return _Work("ranked" if p.top_p < 1 else "whole", whole)


def _bucket(count: int, whole: int) -> int:
    """How many of a row's lanes to rank for its `count` largest: a few sizes, so that rows share them."""
    width = max(_NARROWEST, 1 << (count - 1).bit_length())
    return width if 2 * width * _BLOCK <= whole else whole


def _filter(group: _Group, scores: mx.array) -> tuple[mx.array, mx.array | None, mx.array]:
    """Temperature, top-k, top-p, min-p: scores [R, V] -> weights [R, N], their ids [R, N], largest scores [R, 1].

    A weight is a token's probability over that of the most likely one, or 0 if it was filtered out. `ids` is None where
    lane and id are the same.
    """
    scores = _pad(scores)
    peak = mx.max(scores, axis=-1, keepdims=True)
    ids = None
    if group.work.how == "ranked":
        scores, ids = _largest(scores, group.work.width)
    relative = (scores - peak) / group.temperature  # 0 for the most likely token
    weights = mx.exp(relative)
    if ids is not None:
        rank = mx.arange(group.work.width)
        weights = mx.where(rank < group.top_k, weights, 0)
        weights = keep_top_p(weights, group.top_p)
    return mx.where(relative >= group.log_min_p, weights, 0), ids, peak


def keep_top_p(weights: mx.array, top_p: mx.array) -> mx.array:
    """Zeroes what lies behind the smallest set of a row's largest weights that reaches `top_p` of the row's sum.

    >>> keep_top_p(mx.array([[5.0, 3, 1, 1]]), mx.array([[0.6]]))
    array([[5, 3, 0, 0]], dtype=float32)

    weights: [R, N] >= 0, each row's largest first, N at most 128 or a multiple of it; top_p: [R, 1], infinite to keep all. The first of
    a row always stays. What stays is not scaled: `pick` divides by the sum (Holtzman et al. 2019, arXiv:1904.09751).
    """
    rank = mx.arange(weights.shape[-1])
    before, total = _mass_before(weights)
    return mx.where((before < top_p * total) | (rank == 0), weights, 0)


def _pad(x: mx.array) -> mx.array:
    """[R, V] -> [R, whole blocks], filled with -inf."""
    missing = -x.shape[-1] % _BLOCK
    return mx.pad(x, [(0, 0), (0, missing)], constant_values=-math.inf) if missing else x


def _in_blocks(x: mx.array) -> mx.array:
    """[R, N] -> [R, N / block, block]; rows narrower than a block are one."""
    return x.reshape(x.shape[0], -1, min(_BLOCK, x.shape[-1]))


def _order(x: mx.array, count: int) -> mx.array:
    """Indices of the `count` largest of each row, largest first: [..., N] -> [..., count] int32.

    MLX's sorts are stable, so of equals the lowest index comes first. A sort of int64 keys made of value and index would not need
    that, but on CUDA `mx.sort` of int64 gives zeros for rows of up to 2,048 (MLX 0.32.4, H200), where `argsort` is right.
    """
    return mx.argsort(-x, axis=-1)[..., :count].astype(mx.int32)


def _largest(x: mx.array, width: int) -> tuple[mx.array, mx.array]:
    """The `width` largest of each row, largest first, of equals the lowest index: values and indices [R, width].

    The `width` largest numbers lie in the `width` blocks that come first by (maximum, index): a number elsewhere has a
    larger or equal and earlier one in each of those. So only they are sorted, not the row.
    """
    if width == x.shape[-1]:
        ids = _order(x, width)
    else:
        blocks = _order(mx.max(_in_blocks(x), axis=-1), width)
        # In order, so that among the candidates, too, the index ascends with the id.
        blocks = mx.take_along_axis(blocks, mx.argsort(blocks, axis=-1), axis=-1)
        candidates = (blocks[..., None] * _BLOCK + mx.arange(_BLOCK)).reshape(x.shape[0], -1)
        places = _order(mx.take_along_axis(x, candidates, axis=-1), width)
        ids = mx.take_along_axis(candidates, places, axis=-1)
    return mx.take_along_axis(x, ids, axis=-1), ids


def _mass_before(weights: mx.array) -> tuple[mx.array, mx.array]:
    """The sum of the weights before each one [R, N], and of all [R, 1]."""
    blocks = _in_blocks(weights)
    inside = mx.cumsum(blocks, axis=-1, inclusive=False)
    sums = inside[..., -1] + blocks[..., -1]
    if sums.shape[-1] == 1:  # also because MLX 0.32.4 on CUDA gives garbage for the exclusive sum of one row's one block
        return inside[:, 0], sums
    starts = mx.cumsum(sums, axis=-1, inclusive=False)
    return (starts[..., None] + inside).reshape(weights.shape), starts[:, -1:] + sums[:, -1:]


def _log_sum_exp(x: mx.array) -> mx.array:
    """log(sum(exp(x))) [R, 1]. By blocks: one float32 sum over 151,936 lanes was off by 2e-4 (MLX 0.32.4, CPU)."""
    peak = mx.max(x, axis=-1, keepdims=True)
    return peak + mx.log(mx.sum(mx.sum(_in_blocks(mx.exp(x - peak)), axis=-1), axis=-1, keepdims=True))


def pick(weights: mx.array, u: mx.array) -> mx.array:
    """Draws an index from each row with probability weight / sum: weights [R, N] >= 0, u [R, 2] in (0, 1) -> [R].

    >>> pick(mx.array([[1.0, 0, 3], [1.0, 0, 3]]), mx.array([[0.2, 0.2], [0.9, 0.9]]))
    array([0, 2], dtype=uint32)

    N is at most 128 or a multiple of it. An index of weight 0 is never drawn, and the index never falls while u[:, 0] grows.

    Inverse CDF in two levels: u[:, 0] chooses a block, u[:, 1] a lane in it. One float32 running sum over 151,936 lanes
    would lose every weight below 2^-25 of it, up to 0.4 % of the mass. Here a step of a running sum (1,187 blocks, then
    128 lanes) is off by at most 2^-24 of the total for its rounding and 2^-23 for u's cells, so that even in the worst
    case the probabilities are less than 3e-4 from the exact ones in total variation.
    """
    blocks = _in_blocks(weights)
    inside = mx.cumsum(blocks, axis=-1)
    sums = inside[..., -1]
    block = _reach(mx.cumsum(sums, axis=-1), sums > 0, u[:, :1])
    at = block[:, None, None]
    inside, lanes = (mx.take_along_axis(a, at, axis=1)[:, 0] for a in (inside, blocks))
    return block * blocks.shape[-1] + _reach(inside, lanes > 0, u[:, 1:])


def _reach(sums: mx.array, present: mx.array, u: mx.array) -> mx.array:
    """The first present index whose running sum exceeds u of the total [R].

    Never an absent one: a parallel scan may round a running sum up where nothing is added, and u * total may round to
    the total, but the largest sum of a present index always counts as reached.
    """
    sums = mx.where(present, sums, 0)
    total = mx.max(sums, axis=-1, keepdims=True)
    return mx.argmax((sums > u * total) | (sums == total), axis=-1)


def _or_no_token(token: mx.array, peak: mx.array) -> mx.array:
    """NO_TOKEN where the largest score is NaN (any score is), or infinite (all are -inf)."""
    return mx.where(mx.isfinite(peak), token.astype(mx.int32), NO_TOKEN)


def _remember(history: History, tokens: mx.array) -> History:
    recent, counts = history
    if recent is not None:
        recent = mx.concatenate([recent[:, 1:], tokens[:, None]], axis=1)
    if counts is not None:
        rows = mx.arange(tokens.shape[0])
        counts = counts.at[rows, mx.maximum(tokens, 0)].add((tokens != NO_TOKEN).astype(mx.int32))
    return History(recent, counts)


def _column(values: Sequence[float]) -> mx.array:
    return mx.array(values, dtype=mx.float32)[:, None]


def _bias_arrays(params: Sequence[SamplingParams], vocab_size: int) -> tuple[mx.array, mx.array, mx.array] | None:
    """All rows' logit biases as rows, ids and values."""
    entries = [(row, token, value) for row, p in enumerate(params) for token, value in p.logit_bias.items()]
    if not entries:
        return None
    rows, ids, values = zip(*entries, strict=True)
    if max(ids) >= vocab_size:
        raise UserError(f"logit_bias names token {max(ids)}; this model's ids go from 0 to {vocab_size - 1}")
    return mx.array(rows), mx.array(ids), mx.array(values, dtype=mx.float32)


def _number(name: str, value, low: float, high: float, accepted: str, *, above: bool = False) -> float:
    fits = isinstance(value, Real) and not isinstance(value, bool) and low <= value <= high  # NaN compares false
    if not fits or (above and value == low):
        raise UserError(f"{name} is {value!r}; {accepted} is accepted")
    return float(value)


_MANY = 2**31 - 1  # more than any vocabulary or context, and still an int32


def _integer(name: str, value, low: int, high: int | None, accepted: str) -> int:
    fits = isinstance(value, Integral) and not isinstance(value, bool) and value >= low
    if not fits or (high is not None and value > high):
        raise UserError(f"{name} is {value!r}; {accepted} is accepted")
    return int(value)


def _check_bias(bias) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise UserError(f"logit_bias is {bias!r}; a mapping from token ids to numbers is accepted")
    checked = {}
    for token, value in bias.items():
        token = _integer("a logit_bias token", token, 0, None, "an id of 0 or more")
        if value != -math.inf:
            value = _number(f"logit_bias of token {token}", value, -100, 100, "a number from -100 to 100, or -inf,")
        checked[token] = float(value)
    return checked
