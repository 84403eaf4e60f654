"""The sampler against exact float64 distributions, row by row. Seeds are fixed: what passes once passes always."""

import math
from collections import Counter

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinymlx.engine import sampling
from tinymlx.engine.sampling import NO_TOKEN, Sampler, SamplingParams, uniforms, unusable_logits
from tinymlx.errors import UserError

pytestmark = pytest.mark.capability("sampling")

QWEN3_VOCAB, QWEN3_ROWS = 151_669, 151_936  # ids of the tokenizer, rows of the embedding


# ---- the reference: float64, one row, in order -------------------------------------------------------------------


def reference_scores(p, logits, prompt=(), output=()):
    x = np.array(logits, dtype=np.float64)
    for token, bias in p.logit_bias.items():
        x[token] += bias
    for token in set([*prompt, *output][-p.repetition_context_size :]):
        x[token] = x[token] * p.repetition_penalty if x[token] < 0 else x[token] / p.repetition_penalty
    for token, count in Counter(output).items():
        x[token] -= p.frequency_penalty * count + p.presence_penalty
    return x


def reference_filter(p, scores):
    """Probabilities [V] float64, and which tokens lie so near a filter's border that float32 may decide otherwise."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    with np.errstate(over="ignore"):
        weights = np.exp((scores - scores[order[0]]) / p.temperature)
    kept = np.zeros(len(scores), dtype=bool)
    kept[order[: p.top_k or len(order)]] = True
    near = np.zeros(len(scores), dtype=bool)
    if p.top_p < 1:
        total, mass = weights[kept].sum(), 0.0
        for i in [i for i in order if kept[i]]:
            near[i] |= abs(mass - p.top_p * total) < 1e-5 * total
            if mass >= p.top_p * total:
                kept[i] = False
            mass += weights[i]
    near |= np.abs(weights - p.min_p) < 1e-5 * p.min_p
    kept &= weights >= p.min_p
    return np.where(kept, weights, 0) / weights[kept].sum(), near


def reference_log_softmax(logits):
    x = np.array(logits, dtype=np.float64)
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


# ---- helpers -----------------------------------------------------------------------------------------------------


def random_logits(vocab, seed=0, rows=None):
    shape = (vocab,) if rows is None else (rows, vocab)
    return (np.random.default_rng(seed).standard_normal(shape) * 2).astype(np.float32)


def sample(logits, params, positions=None, vocab=None):
    """One step, read: logits [B, W] or [W]."""
    logits = mx.array(logits)
    logits = logits[None] if logits.ndim == 1 else logits
    params = params if isinstance(params, list) else [params] * logits.shape[0]
    sampler = Sampler(params, logits.shape[1] if vocab is None else vocab)
    history = sampler.history([[]] * len(params))
    return sampler.sample(logits, positions or [0] * len(params), history)[0].read()


def draws(logits, p, count, rows=256, vocab=None):
    """`count` draws from one row of logits, at positions 0, 1, 2, ..."""
    vocab = len(logits) if vocab is None else vocab
    sampler = Sampler([p] * rows, vocab)
    batch = mx.broadcast_to(mx.array(logits), (rows, len(logits)))
    tokens = []
    for start in range(0, count, rows):
        draw, _ = sampler.sample(batch, range(start, start + rows), sampler.history([[]] * rows))
        tokens += [row.token for row in draw.read()]
    return tokens[:count]


def assert_distribution(tokens, probabilities):
    """Chi-squared at one in 10,000, bins of less than five expected draws merged; nothing of probability 0."""
    counts = np.bincount(tokens, minlength=len(probabilities)).astype(float)
    assert not counts[probabilities == 0].any(), "a token that was filtered out was drawn"
    expected = probabilities * len(tokens)
    order = np.argsort(expected)
    bins, seen, hoped = [], 0.0, 0.0
    for i in order:
        seen, hoped = seen + counts[i], hoped + expected[i]
        if hoped >= 5:
            bins.append((seen, hoped))
            seen = hoped = 0.0
    bins[-1] = (bins[-1][0] + seen, bins[-1][1] + hoped)
    statistic = sum((s - h) ** 2 / h for s, h in bins)
    if (freedom := len(bins) - 1) == 0:
        return
    z = 3.719  # 1 - 1e-4 of the normal distribution; Wilson and Hilferty 1931
    limit = freedom * (1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit, f"chi-squared {statistic:.1f}, limit {limit:.1f}, {freedom} degrees of freedom"


# ---- distributions -----------------------------------------------------------------------------------------------

FILTERS = {
    "temperature 1": dict(temperature=1.0),
    "temperature 0.4": dict(temperature=0.4),
    "temperature 3": dict(temperature=3.0),
    "top-k": dict(temperature=1.0, top_k=5),
    "top-p": dict(temperature=1.0, top_p=0.8),
    "min-p": dict(temperature=1.0, min_p=0.2),
    "top-k, top-p": dict(temperature=0.7, top_k=20, top_p=0.9),
    "top-p, min-p": dict(temperature=1.5, top_p=0.95, min_p=0.05),
    "all": dict(temperature=1.2, top_k=25, top_p=0.9, min_p=0.1),
    "bias": dict(temperature=1.0, logit_bias={0: 3, 2: -math.inf, 4: -1}),
}


@pytest.mark.parametrize("vocab", [7, 33, 1000])
@pytest.mark.parametrize("name", FILTERS)
def test_draws_follow_the_exact_distribution(name, vocab):
    p = SamplingParams(seed=vocab, **FILTERS[name])
    logits = random_logits(vocab)
    probabilities, near = reference_filter(p, reference_scores(p, logits))
    assert not near.any()
    assert_distribution(draws(logits, p, 4096), probabilities)


@pytest.mark.parametrize("options", [dict(), dict(top_k=50), dict(top_k=50, top_p=0.9), dict(top_p=0.5)])
@pytest.mark.full
def test_draws_at_the_size_of_a_real_vocabulary(options):
    p = SamplingParams(temperature=1.0, seed=5, **options)
    logits = random_logits(QWEN3_ROWS, seed=1)
    probabilities, _ = reference_filter(p, reference_scores(p, logits[:QWEN3_VOCAB]))
    tokens = draws(logits, p, 40, rows=4, vocab=QWEN3_VOCAB)
    # Eight bins of about equal mass, from the least to the most likely token.
    order = np.argsort(probabilities, kind="stable")
    bins = np.minimum((np.cumsum(probabilities[order]) * 8).astype(int), 7)
    bin_of = np.empty(QWEN3_VOCAB, dtype=int)
    bin_of[order] = bins
    assert (probabilities[tokens] > 0).all()
    assert_distribution(bin_of[tokens], np.bincount(bin_of, weights=probabilities, minlength=8))


def test_every_row_has_its_own_parameters():
    """All filters in one batch, each row's draws by its own distribution."""
    vocab, copies, rounds = 33, 32, 64
    params = [SamplingParams(seed=i, **options) for i, options in enumerate(FILTERS.values())]
    logits = random_logits(vocab, rows=len(params), seed=3)
    sampler = Sampler(params * copies, vocab)
    batch, history = mx.array(np.tile(logits, (copies, 1))), sampler.history([[]] * len(params) * copies)
    steps = []
    for step in range(rounds):
        positions = [step * copies + copy for copy in range(copies) for _ in params]
        steps.append(sampler.sample(batch, positions, history)[0].tokens)
    tokens = np.array(mx.stack(steps)).reshape(-1, len(params))
    for row, p in enumerate(params):
        assert_distribution(tokens[:, row], reference_filter(p, reference_scores(p, logits[row]))[0])


def test_the_inverse_cdf_is_exact_to_the_cell():
    """Evenly spaced numbers u, and every count must be right to one or two draws: far sharper than chi-squared."""
    weights = np.exp(random_logits(300)).astype(np.float32)
    weights = np.pad(weights, (0, 84))
    side = 64
    grid = (np.arange(side) + 0.5) / side
    u = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2).astype(np.float32)
    picked = np.array(sampling.pick(mx.broadcast_to(mx.array(weights), (len(u), 384)), mx.array(u)))
    counts = np.bincount(picked, minlength=384).reshape(3, 128)
    mass = weights.reshape(3, 128).astype(np.float64)
    block_counts = counts.sum(1)
    assert np.abs(block_counts / side - side * mass.sum(1) / mass.sum()).max() <= 1
    lane_counts = counts / (block_counts[:, None] / side)
    assert np.abs(lane_counts - side * mass / mass.sum(1, keepdims=True)).max() <= 1


def test_a_long_flat_tail_is_not_lost():
    """A running float32 sum over the whole row would never reach these tokens: each adds less than half a step to 1."""
    tail = np.full(QWEN3_ROWS, 2.9e-8, dtype=np.float32)
    tail[0] = 1.0
    total = tail.sum(dtype=np.float64)
    for u in (0.9965, 0.998, 0.9999):
        token = sampling.pick(mx.array(tail)[None], mx.array([[u, 0.5]])).item()
        assert abs(token - (u * total - 1) / 2.9e-8) < 0.02 * QWEN3_ROWS  # 0.02 of the tail is 1e-4 of the mass


@given(
    st.lists(st.sampled_from([0.0, 0.0, 1e-45, 1e-38, 1e-30, 1e-8, 0.25, 1.0]), min_size=1, max_size=40),
    st.sampled_from([2**-24, 0.5, 1 - 2**-24, 1.0]),
    st.sampled_from([2**-24, 0.5, 1 - 2**-24, 1.0]),
    st.sampled_from([1, 3, 9, 40]),
)
def test_never_draws_a_token_of_weight_zero(values, u_block, u_lane, repeat):
    weights = np.array((values * repeat), dtype=np.float32)
    weights = np.pad(weights, (0, -len(weights) % 128))
    if weights.max() > 1e-30:  # the sampler's largest weight is 1; GPUs flush the smallest to 0
        token = sampling.pick(mx.array(weights)[None], mx.array([[u_block, u_lane]])).item()
        assert weights[token] > 0


def test_never_draws_past_a_running_sum_that_is_not_monotone():
    """A parallel scan rounds each sum its own way, so a sum may rise, or fall, where nothing is added."""
    sums = mx.array([[0.5, 0.50000006, 0.9, 0.99999994, 1.0]])
    present = mx.array([[True, False, True, False, False]])
    for u in (2**-24, 0.5, 0.6, 0.95, 1 - 2**-24, 1.0):
        assert sampling._reach(sums, present, mx.array([[u]])).item() in (0, 2)


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 7, 33, 300, 5000]),
    st.sampled_from([0.3, 1.0, 2.5]),
    st.sampled_from([0, 1, 2, 16, 17, 40, 299, 70_000]),
    st.sampled_from([1e-9, 0.3, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    st.booleans(),
)
def test_the_filtered_set_equals_the_reference(seed, vocab, temperature, top_k, top_p, min_p, coarse):
    """`coarse` logits take few values, as bf16 ones do: ties everywhere."""
    logits = random_logits(vocab, seed)
    if coarse:
        logits = np.round(logits)
    p = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    if p.greedy:
        return
    expected, near = reference_filter(p, logits.astype(np.float64))
    (group,) = Sampler([p], vocab)._groups
    weights, ids, _ = sampling._filter(group, mx.array(logits)[None])
    weights = np.array(weights[0])
    ids = np.arange(len(weights)) if ids is None else np.array(ids[0])
    found = np.zeros(max(vocab, ids.max() + 1))
    found[ids] = weights
    assert not found[vocab:].any()
    found = found[:vocab]
    certain = ~near
    np.testing.assert_array_equal((found > 0)[certain], (expected > 0)[certain])
    both = (found > 0) & (expected > 0)
    np.testing.assert_allclose(found[both], expected[both] / expected.max(), rtol=2e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([16, 32, 64, 8192]), st.booleans())
def test_the_largest_come_in_order_of_value_then_id(seed, width, coarse):
    """Width 16 to 64 of 8,192 goes by block maxima, 8,192 by a whole sort."""
    x = random_logits(8192, seed, rows=2)
    if coarse:
        x = np.round(x)
    x[:, 7] = -0.0
    x[:, 8] = -np.inf
    values, ids = sampling._largest(mx.array(x), width)
    order = np.argsort(-x.astype(np.float64), axis=-1, kind="stable")[:, :width]
    np.testing.assert_array_equal(np.array(ids), order)
    np.testing.assert_array_equal(np.array(values), np.take_along_axis(x, order, -1))


# ---- ties, greedy ------------------------------------------------------------------------------------------------


def test_greedy_takes_the_lowest_id_of_the_largest():
    logits = random_logits(QWEN3_ROWS) - 100
    logits[[90_000, 70, 151_000, 300]] = 5
    logits[QWEN3_VOCAB:] = 50  # padded rows
    assert sample(logits, SamplingParams(), vocab=QWEN3_VOCAB)[0].token == 70
    assert sample(logits, SamplingParams(temperature=1, top_k=1), vocab=QWEN3_VOCAB)[0].token == 70
    assert sample(logits, SamplingParams(temperature=1e-6), vocab=QWEN3_VOCAB)[0].token == 70


def test_greedy_neither_sorts_nor_draws(monkeypatch):
    for name in ("_filter", "_largest", "pick", "uniforms", "_pad"):
        monkeypatch.setattr(sampling, name, None)
    for options in (dict(), dict(temperature=1, top_k=1), dict(temperature=1e-6, top_p=0.5)):
        assert sample([1.0, 3, 2], SamplingParams(**options))[0].token == 1


def test_a_tie_at_the_border_of_top_k_and_top_p_keeps_the_lowest_ids():
    logits = np.zeros(500, dtype=np.float32)
    assert set(draws(logits, SamplingParams(temperature=1, top_k=3, seed=1), 256)) == {0, 1, 2}
    assert set(draws(logits, SamplingParams(temperature=1, top_p=0.0079, seed=1), 256)) == {0, 1, 2, 3}
    logits[400:] = 1
    assert set(draws(logits, SamplingParams(temperature=1, top_k=102, seed=1), 4096)) == {0, 1, *range(400, 500)}


def test_the_filters_at_their_borders():
    """float32 is exact here: top-p stops as soon as its mass is reached, min-p keeps what is just as likely."""
    flat = np.zeros(8, dtype=np.float32)
    assert set(draws(flat, SamplingParams(temperature=1, top_p=0.5, seed=1), 256)) == {0, 1, 2, 3}
    assert set(draws(flat, SamplingParams(temperature=1, top_p=1e-300, seed=1), 256)) == {0}
    (group,) = Sampler([SamplingParams(temperature=1, top_p=1e-300)], 8)._groups
    assert np.array(sampling._filter(group, mx.array(flat)[None])[0])[0].nonzero()[0].tolist() == [0]
    peaks = np.array([1, 3, 3, 2.99], dtype=np.float32)
    for options in (dict(), dict(top_k=3), dict(top_p=0.99)):
        assert set(draws(peaks, SamplingParams(temperature=1, min_p=1, seed=1, **options), 256)) == {1, 2}


def test_a_cold_temperature_finds_the_largest():
    logits = random_logits(1000)
    for temperature in (1e-4, sampling.GREEDY_BELOW):
        assert set(draws(logits, SamplingParams(temperature=temperature, seed=0), 256)) == {int(logits.argmax())}


def test_a_hot_temperature_is_uniform_over_what_is_allowed():
    p = SamplingParams(temperature=3e38, seed=0, logit_bias={3: -math.inf})
    assert_distribution(draws(random_logits(7), p, 2048), np.array([1, 1, 1, 0, 1, 1, 1]) / 6)


# ---- rows and draws ----------------------------------------------------------------------------------------------

MIXED = [
    SamplingParams(logprobs=3),
    SamplingParams(temperature=1, seed=1),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.95, seed=2, logprobs=0),
    SamplingParams(temperature=1, top_k=50, seed=3, repetition_penalty=1.3, repetition_context_size=4),
    SamplingParams(temperature=1, top_p=0.9, seed=4, presence_penalty=1.0, logprobs=25),
    SamplingParams(temperature=1, min_p=0.02, seed=5, logit_bias={3: 2.0}),
    SamplingParams(temperature=1.3, top_k=20, min_p=0.01, seed=6, frequency_penalty=-0.5),
    SamplingParams(repetition_penalty=1.1, logprobs=3),
]


def run(params, logits, prompts, steps, start=0):
    """A pipelined loop: nothing is read before the last step is enqueued. logits [steps, B, W] -> tokens by step."""
    sampler = Sampler(params, logits.shape[2] - 5)
    history, read = sampler.history(prompts), []
    for step in range(steps):
        draw, history = sampler.sample(logits[step], [start + step] * len(params), history)
        read.append(draw)
    return [draw.read() for draw in read]


@pytest.mark.parametrize("vocab", [33, 1005, 6005])
def test_a_row_depends_on_nothing_but_itself(vocab):
    steps, rows = 12, len(MIXED)
    logits = mx.array(random_logits(vocab, rows=steps * rows)).reshape(steps, rows, vocab)
    prompts = [[row, 3, row + 1, 3] for row in range(rows)]
    together = run(MIXED, logits, prompts, steps)
    for row in range(rows):
        alone = run([MIXED[row]], logits[:, row : row + 1], [prompts[row]], steps)
        assert [step[0] for step in alone] == [step[row] for step in together]
    shuffled = [5, 2, 7, 0, 1, 4, 6, 3]
    other = run([MIXED[r] for r in shuffled], logits[:, mx.array(shuffled)], [prompts[r] for r in shuffled], steps)
    assert [[step[shuffled.index(row)] for row in range(rows)] for step in other] == together


def test_a_draw_is_a_function_of_seed_and_position():
    logits = random_logits(1000)
    p = SamplingParams(temperature=1, seed=7)
    tokens = [sample(logits, p, [n])[0].token for n in range(8)]
    mx.random.seed(1)
    assert [sample(logits, p, [n])[0].token for n in reversed(range(8))] == tokens[::-1]
    assert draws(logits, p, 8, rows=8) == tokens
    assert len(set(tokens)) > 4
    assert [sample(logits, SamplingParams(temperature=1, seed=8), [n])[0].token for n in range(8)] != tokens


def test_the_hash_is_the_same_in_every_release():
    assert uniforms(0, 0) == (947349 / 2**24, 4890789 / 2**24)
    assert uniforms(2**64 - 1, 151) == uniforms(-1, 151) == (8871259 / 2**24, 3870981 / 2**24)


def test_the_hash_is_uniform_and_never_0_or_1():
    pairs = np.array([uniforms(seed, position) for seed in range(64) for position in range(256)])
    assert (pairs > 0).all() and (pairs < 1).all()
    assert (pairs.astype(np.float32) == pairs).all()
    cells = (pairs[:, 0] * 16).astype(int) * 16 + (pairs[:, 1] * 16).astype(int)
    assert_distribution(cells, np.full(256, 1 / 256))
    neighbours = (pairs[:-1, 0] * 16).astype(int) * 16 + (pairs[1:, 0] * 16).astype(int)
    assert_distribution(neighbours, np.full(256, 1 / 256))


def test_without_a_seed_one_is_drawn_and_told():
    p = SamplingParams(temperature=1)
    first, second = Sampler([p], 1000), Sampler([p], 1000)
    assert first.seeds != second.seeds
    logits = mx.array(random_logits(1000))[None]
    again = Sampler([SamplingParams(temperature=1, seed=first.seeds[0])], 1000)
    for n in range(8):
        drawn = [s.sample(logits, [n], s.history([[]]))[0].read()[0].token for s in (first, again)]
        assert drawn[0] == drawn[1]


class Traced(Exception):
    pass


def test_a_step_evaluates_nothing():
    """The host may go on to the next step. MLX raises when a traced function evaluates, and this one ends in Traced."""
    sampler = Sampler(MIXED, 1000)
    history = sampler.history([[1, 2]] * len(MIXED))

    def step(logits, recent, counts):
        sampler.sample(logits, [5] * len(MIXED), sampling.History(recent, counts))
        raise Traced

    with pytest.raises(Traced):
        mx.compile(step)(mx.zeros((len(MIXED), 1000)), *history)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_logits_are_computed_in_float32(dtype):
    logits = mx.array(random_logits(3000, rows=len(MIXED))).astype(dtype)
    prompts = [[1, 2]] * len(MIXED)
    half = run(MIXED, logits[None], prompts, 1)
    assert half == run(MIXED, logits.astype(mx.float32)[None], prompts, 1)


@pytest.mark.parametrize("filler", [math.nan, math.inf, 1e30])
def test_padded_rows_are_never_looked_at(filler):
    logits = random_logits(200, rows=len(MIXED))
    logits[:, 190:] = filler
    sampler = Sampler(MIXED, 190)
    history = sampler.history([[1, 2]] * len(MIXED))
    padded = sampler.sample(mx.array(logits), [0] * len(MIXED), history)[0].read()
    assert padded == sampler.sample(mx.array(logits[:, :190]), [0] * len(MIXED), history)[0].read()
    assert all(0 <= row.token < 190 for row in padded)


def test_top_k_of_any_size():
    logits = random_logits(QWEN3_ROWS)
    whole = sample(logits, SamplingParams(temperature=1, seed=3), vocab=QWEN3_VOCAB)
    for top_k in (QWEN3_VOCAB, QWEN3_ROWS, 10**9):
        assert sample(logits, SamplingParams(temperature=1, seed=3, top_k=top_k), vocab=QWEN3_VOCAB) == whole
    kept = np.argsort(-logits[:QWEN3_VOCAB], kind="stable")[:70_000]
    p = SamplingParams(temperature=50, seed=3, top_k=70_000)
    tokens = draws(logits, p, 16, rows=4, vocab=QWEN3_VOCAB)
    assert set(tokens) <= set(kept.tolist())


# ---- penalties ---------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 8), max_size=12),
    st.sampled_from([1.0, 0.5, 1.3, 10.0]),
    st.sampled_from([1, 3, 20, 10**9]),
    st.sampled_from([0.0, 1.5, -1.0]),
    st.sampled_from([0.0, 0.7, -2.0]),
    st.sampled_from([{}, {0: 5.0, 3: -4.0}, {8: -math.inf}]),
    st.integers(0, 2**32 - 1),
)
def test_penalties_equal_the_reference_step_by_step(prompt, repetition, window, presence, frequency, bias, seed):
    """A pipelined loop of a greedy, a drawn and an unpenalised row; the reference replays it on the host."""
    vocab, steps = 9, 8
    options = dict(
        repetition_penalty=repetition,
        repetition_context_size=window,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
        max_tokens=steps,
    )
    params = [SamplingParams(**options), SamplingParams(temperature=1, seed=seed, **options), SamplingParams()]
    sampler = Sampler(params, vocab)
    history = sampler.history([prompt, prompt[::-1], prompt])
    logits = random_logits(vocab, seed, rows=steps * 3).reshape(steps, 3, vocab)
    before, drawn = [], []
    for step in range(steps):
        before.append(sampler._penalise(mx.array(logits[step]), history))
        draw, history = sampler.sample(mx.array(logits[step]), [len(prompt) + step] * 3, history)
        drawn.append(draw)
    outputs = np.array([[row.token for row in draw.read()] for draw in drawn])
    for step in range(steps):
        for row, start in enumerate((prompt, prompt[::-1], prompt)):
            expected = reference_scores(params[row], logits[step, row], start, outputs[:step, row].tolist())
            np.testing.assert_allclose(np.array(before[step][row]), expected, rtol=1e-5, atol=1e-5)
            if row == 0 and np.diff(np.sort(expected)[-2:])[0] > 1e-4:
                assert outputs[step, row] == expected.argmax()
        np.testing.assert_array_equal(np.array(before[step][2]), logits[step, 2])  # to the bit


def test_a_row_that_joins_in_the_middle_of_an_answer_goes_on_as_before():
    p = SamplingParams(temperature=1, seed=4, repetition_penalty=1.5, repetition_context_size=5, frequency_penalty=1)
    logits = mx.array(random_logits(20, rows=16)).reshape(16, 1, 20)
    whole = [step[0].token for step in run([p], logits, [[1, 2, 3]], 16)]
    sampler = Sampler([p], 15)
    history = sampler.history([[1, 2, 3]], [whole[:9]])
    assert history.recent.tolist() == [whole[4:9]]
    assert history.counts.tolist() == [np.bincount(whole[:9], minlength=15).tolist()]
    rest = []
    for step in range(9, 16):
        draw, history = sampler.sample(logits[step], [step], history)
        rest.append(draw.read()[0].token)
    assert rest == whole[9:]


def test_bias_and_repetition_penalty_equal_mlx_lms():
    """The same order, sign rule and window. Presence and frequency differ on purpose: OpenAI counts no prompt."""
    from mlx_lm.sample_utils import make_logits_processors

    logits = mx.array(random_logits(50))[None]
    prompt = np.random.default_rng(2).integers(0, 50, 60).tolist()
    p = SamplingParams(repetition_penalty=1.7, logit_bias={prompt[-1]: 4.0, prompt[0]: -3.0, 7: 1.0})
    sampler = Sampler([p], 50)
    ours = sampler._penalise(logits, sampler.history([prompt]))
    theirs = mx.array(logits)
    for process in make_logits_processors(p.logit_bias, p.repetition_penalty, 20):
        theirs = process(mx.array(prompt), theirs)
    assert mx.allclose(ours, theirs, rtol=1e-6).item()


def test_history_costs_nothing_when_no_row_has_penalties():
    sampler = Sampler([SamplingParams(temperature=1)], 10)
    history = sampler.history([[1, 2]])
    assert history == (None, None)
    assert sampler.sample(mx.zeros((1, 10)), [2], history)[1] == (None, None)


def test_prompt_ids_beyond_the_drawable_ones_are_not_penalised():
    p = SamplingParams(repetition_penalty=2)
    sampler = Sampler([p], 4)
    history = sampler.history([[7, 4, 2]])
    assert history.recent[:, -3:].tolist() == [[NO_TOKEN, NO_TOKEN, 2]]
    scores = sampler._penalise(mx.array([[1.0, 2, 4, 2]]), history)
    assert scores.tolist() == [[1, 2, 2, 2]]


# ---- unusable logits ---------------------------------------------------------------------------------------------

KINDS = [dict(), *FILTERS.values()]


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("vocab", [33, 6000])
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf])
def test_no_token_is_drawn_from_nan_or_infinity(bad, vocab, options):
    p = SamplingParams(seed=1, **options)
    good = random_logits(vocab)
    for place in (0, vocab // 2, vocab - 1):
        logits = np.stack([good, good])
        logits[0, place] = bad
        if p.logit_bias.get(place) == -math.inf:
            continue
        rows = sample(logits, p)
        assert rows[0].token == NO_TOKEN
        assert rows[1] == sample(good, p)[0]  # the neighbour goes on


@pytest.mark.parametrize("options", [o for o in KINDS if "logit_bias" not in o], ids=str)
def test_no_token_is_drawn_where_all_are_ruled_out(options):
    p = SamplingParams(seed=1, logit_bias={i: -math.inf for i in range(5)}, **options)
    assert sample(random_logits(5), p)[0].token == NO_TOKEN
    one = {i: -math.inf for i in range(5) if i != 3}
    assert sample(random_logits(5), SamplingParams(seed=1, logit_bias=one, **options))[0].token == 3


def test_unusable_logits_are_told_in_one_line_and_do_not_break_the_next_step():
    params = [SamplingParams(repetition_penalty=1.2, frequency_penalty=1, logprobs=2)]
    sampler = Sampler(params, 5)
    draw, history = sampler.sample(mx.full((1, 5), math.nan), [0], sampler.history([[1]]))
    following, after = sampler.sample(mx.array([[1.0, 2, 3, 4, 5]]), [1], history)
    assert draw.read()[0].token == NO_TOKEN
    assert history.counts.sum().item() == 0
    assert following.read()[0].token == 4
    with pytest.raises(UserError, match=r"^no token can be drawn at position 0: [^\n]+$"):
        raise unusable_logits(0)


# ---- log-probabilities -------------------------------------------------------------------------------------------


def test_log_probabilities_are_the_models_own():
    """From the logits before bias, penalties, temperature and filters, over the ids that may be drawn."""
    logits = random_logits(QWEN3_ROWS, rows=2)
    logits[:, QWEN3_VOCAB:] = 20
    p = SamplingParams(
        temperature=0.3,
        top_k=40,
        seed=1,
        logprobs=5,
        logit_bias={17: 100.0},
        repetition_penalty=1.5,
        presence_penalty=1,
    )
    sampler = Sampler([p, SamplingParams(logprobs=5)], QWEN3_VOCAB)
    draw, _ = sampler.sample(mx.array(logits), [3, 3], sampler.history([[1, 2, 3], [1, 2, 3]]))
    rows = draw.read()
    assert rows[0].token == 17
    for row, x in zip(rows, logits, strict=True):
        exact = reference_log_softmax(x[:QWEN3_VOCAB])
        assert row.logprob == pytest.approx(exact[row.token], abs=3e-6)
        order = np.argsort(-x[:QWEN3_VOCAB], kind="stable")[:5]
        assert [token for token, _ in row.top_logprobs] == order.tolist()
        assert [value for _, value in row.top_logprobs] == pytest.approx(exact[order].tolist(), abs=3e-6)
    assert rows[1].top_logprobs[0] == (rows[1].token, rows[1].logprob)


def test_rows_ask_for_different_numbers_of_alternatives():
    logits = random_logits(30, rows=4)
    logits[:, 4] = logits[:, 9] = 9  # a tie: the lower id first
    rows = sample(logits, [SamplingParams(logprobs=n) for n in (2, None, 0, 10**6)])
    assert [len(row.top_logprobs) for row in rows] == [2, 0, 0, 30]
    assert [row.logprob is None for row in rows] == [False, True, False, False]
    assert [token for token, _ in rows[0].top_logprobs] == [4, 9]
    assert sum(math.exp(value) for _, value in rows[3].top_logprobs) == pytest.approx(1, abs=1e-5)


def test_a_token_that_cannot_be_has_log_probability_minus_infinity():
    row = sample([0.0, -math.inf, 0.0], SamplingParams(logprobs=3))[0]
    assert row.top_logprobs == [(0, pytest.approx(-math.log(2))), (2, pytest.approx(-math.log(2))), (1, -math.inf)]


def test_log_probabilities_cost_nothing_when_not_asked_for(monkeypatch):
    for name in ("_log_sum_exp", "_largest"):
        monkeypatch.setattr(sampling, name, None)
    sampler = Sampler([SamplingParams()], 3)
    draw, _ = sampler.sample(mx.array([[1.0, 3, 2]]), [0], sampler.history([[]]))
    assert len(draw.arrays()) == 1
    assert draw.read() == [(1, None, [])]


# ---- parameters --------------------------------------------------------------------------------------------------

REFUSED = {
    "temperature": [-0.1, math.nan, math.inf, "1", None, True, 10**400],
    "top_p": [0, 0.0, -1, 1.0001, math.nan, math.inf, "0.9", None],
    "top_k": [-1, 1.5, math.nan, math.inf, "3", None, True],
    "min_p": [-0.01, 1.01, math.nan, math.inf, None],
    "repetition_penalty": [0, -1, math.nan, math.inf, None],
    "repetition_context_size": [0, -5, 2.0, None],
    "presence_penalty": [-2.1, 2.1, math.nan, math.inf, None],
    "frequency_penalty": [-2.1, 2.1, math.nan, -math.inf, None],
    "logit_bias": [[1, 2], "5", None, {-1: 1}, {1: math.nan}, {1: math.inf}, {1: 101}, {"1": 1}, {1.5: 1}, {1: "a"}],
    "seed": [2**64, -(2**63) - 1, 1.0, "1", True, math.nan],
    "logprobs": [-1, 1.5, True, "3"],
    "max_tokens": [0, -1, 1.5, None, True],
    "stop": ["", ["a", ""], [1, 2], 3],
    "ignore_eos": [1, None, "yes"],
}


@pytest.mark.parametrize("name, value", [(name, value) for name, values in REFUSED.items() for value in values])
def test_refuses_values_out_of_range_in_one_line(name, value):
    with pytest.raises(UserError, match=rf"^[^\n]*\b{name}\b[^\n]*$") as caught:
        SamplingParams(**{name: value})
    assert name in ("stop", "ignore_eos") or "is accepted" in str(caught.value)


def test_says_what_is_wrong_and_what_is_accepted():
    with pytest.raises(UserError, match=r"^top_p is 1\.5; a number above 0 and at most 1 is accepted$"):
        SamplingParams(top_p=1.5)


def test_takes_values_at_the_borders_and_numpys():
    p = SamplingParams(
        temperature=np.float32(0.5), top_p=1, top_k=np.int64(3), min_p=1, repetition_penalty=0.1,
        presence_penalty=-2, frequency_penalty=2, logit_bias={np.int32(1): -100}, seed=2**64 - 1, logprobs=0,
        max_tokens=1, stop="END",
    )  # fmt: skip
    assert (p.temperature, p.top_k, p.logit_bias, p.stop) == (0.5, 3, {1: -100.0}, ("END",))
    assert type(p.top_k) is int and type(p.top_p) is float
    assert SamplingParams(seed=-(2**63)).seed == -(2**63)
    assert hash(p) == hash(p)


def test_the_bias_is_a_copy():
    bias = {1: 1.0}
    p = SamplingParams(logit_bias=bias)
    bias[1] = math.nan
    assert p.logit_bias == {1: 1.0}


def test_refuses_a_bias_for_a_token_the_model_does_not_have():
    with pytest.raises(UserError, match=r"^logit_bias names token 10; this model's ids go from 0 to 9$"):
        Sampler([SamplingParams(), SamplingParams(logit_bias={10: 1})], 10)
