"""Day 1.5 against a float64 NumPy model that loops over rows and heads. u = 2^-24 is what one float32 rounding costs.

A block's value passes two norms, four sums of up to 84 products, a softmax over up to 33 scores and angles of up to 33
radians: at most 500 roundings in a row, if each went the same way. Each is relative to the terms of its sum, which
largely cancel, but roundings cancel too: 1000 u of the largest value bounds a block with room to spare, and a wrong
block is off by a hundred times as much.
"""

import mlx.core as mx
import numpy as np
import pytest

from tinymlx.learn.grading import assert_close, assert_same, assert_true, roundoff, to_float64

BLOCK = 1000 * roundoff(mx.float32)
LENGTHS = pytest.mark.parametrize("L", [1, 7, 8, 31, 33])
LAYERS, H, G, D, EPS, THETA, PAGE = 3, 6, 3, 14, 0.03, 50.0, 4
CONFIG = {
    "hidden_size": 45,  # not H * D = 84: in Qwen3 the two are not tied to each other
    "num_hidden_layers": LAYERS,
    "num_attention_heads": H,
    "num_key_value_heads": G,
    "head_dim": D,
    "intermediate_size": 77,
    "vocab_size": 61,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
}


def build(subject, rng, model_type="qwen3", dtype=mx.float32, **keys):
    """A model of random weights, and the same weights in float64."""
    config = subject.ModelConfig.from_dict(CONFIG | {"model_type": model_type} | keys)
    linears, others = subject.tensor_shapes(config)
    drawn = {}
    for module, shape in linears.items():
        gain = 1.0 if "embed" in module else 1.5 * shape[-1] ** -0.5
        drawn[f"{module}.weight"] = gain * rng.standard_normal(shape)
    for name, shape in others.items():
        drawn[name] = rng.uniform(0.3, 1.7, shape) * (-1 if name.endswith("proj.bias") else 1)
    weights = {name: mx.array(value.astype(np.float32)).astype(dtype) for name, value in drawn.items()}
    return subject.Qwen3(config, weights), {name: to_float64(weight) for name, weight in weights.items()}


def norm64(x, weight):
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)


def linear64(w, module, x):
    return x @ w[f"{module}.weight"].T + w.get(f"{module}.bias", 0.0)


def heads64(w, name, x, positions):
    """x: [L, heads * D] -> [heads, L, D], normalised if the model does that, and turned."""
    x = x.reshape(len(x), -1, D).transpose(1, 0, 2)
    if name in w:
        x = norm64(x, w[name])
    angles = positions[:, None] * THETA ** (-2 * np.arange(D // 2) / D)
    first, second = x[..., : D // 2], x[..., D // 2 :]
    return np.concatenate(
        [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)], -1
    )


def attention64(w, i, x, past=None, window=None):
    """One row. x: [L, K]; past: keys and values [G, T, D]. Returns the new stream, new keys and new values."""
    block = f"model.layers.{i}."
    k_past, v_past = past if past is not None else (np.zeros((G, 0, D)), np.zeros((G, 0, D)))
    start, L = k_past.shape[1], len(x)
    positions = np.arange(start, start + L)
    normed = norm64(x, w[block + "input_layernorm.weight"])
    q, k, v = (linear64(w, f"{block}self_attn.{name}_proj", normed) for name in "qkv")
    q = heads64(w, f"{block}self_attn.q_norm.weight", q, positions)
    k = heads64(w, f"{block}self_attn.k_norm.weight", k, positions)
    v = v.reshape(L, G, D).transpose(1, 0, 2)
    keys, values = np.concatenate([k_past, k], 1), np.concatenate([v_past, v], 1)
    distance = positions[:, None] - np.arange(start + L)
    seen = (distance >= 0) & (distance < (window or np.inf))
    mixed = np.zeros((L, H, D))
    for h in range(H):
        g = h // (H // G)
        scores = np.where(seen, q[h] @ keys[g].T / np.sqrt(D), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed[:, h] = weights / weights.sum(-1, keepdims=True) @ values[g]
    return x + linear64(w, f"{block}self_attn.o_proj", mixed.reshape(L, H * D)), k, v


def swiglu64(gate, up):
    return gate / (1 + np.exp(-gate)) * up


def mlp64(w, i, x):
    block = f"model.layers.{i}."
    normed = norm64(x, w[block + "post_attention_layernorm.weight"])
    router = w.get(f"{block}mlp.gate.weight")
    if router is None:
        inner = swiglu64(*(linear64(w, f"{block}mlp.{name}_proj", normed) for name in ("gate", "up")))
        return x + linear64(w, f"{block}mlp.down_proj", inner)
    shares = np.exp(normed @ router.T)
    shares /= shares.sum(-1, keepdims=True)
    gate, up, down = (w[f"{block}mlp.switch_mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return x + sum(
        shares[:, [e]] * (swiglu64(normed @ gate[e].T, normed @ up[e].T) @ down[e].T) for e in range(len(gate))
    )


def forward64(w, tokens):
    """One row of token ids. Returns hidden [L, K], and each layer's keys and values."""
    x, kept = w["model.embed_tokens.weight"][tokens], []
    for i in range(LAYERS):
        x, k, v = attention64(w, i, x)
        x = mlp64(w, i, x)
        kept.append((k, v))
    return x, kept


def view_of(subject, rng, past):
    """A view of a cache that holds past[layer][row] = keys and values [G, T, D], T its own in each row.

    Pages lie in any order; slots that hold no token hold numbers that would show.
    """
    lengths = [row[0].shape[1] for row in past[0]]
    width = -(-max(lengths) // PAGE)
    pages = len(lengths) * width + 1
    table = rng.permutation(pages)[:-1].reshape(len(lengths), width)
    pool = 5 * rng.standard_normal((len(past) * 2 * pages, G, PAGE, D))
    for layer, rows in enumerate(past):
        for row, pair in enumerate(rows):
            for part, values in enumerate(pair):  # keys, then values
                for position in range(lengths[row]):
                    page = (2 * layer + part) * pages + table[row, position // PAGE]
                    pool[page, :, position % PAGE] = values[:, position]
    pool, table, lengths = mx.array(pool.astype(np.float32)), mx.array(table.astype(np.int32)), mx.array(lengths)
    return subject.KVView(pool, table, lengths.astype(mx.int32), pages)


def close(got, want, blocks, what):
    want = np.stack(want)
    assert_close(got, want, blocks * BLOCK * np.abs(want).max(), dtype=mx.float32, what=what)


class TestTask1AttentionBlock:
    def check(self, subject, model, w, x, kv, past=(None, None), window=None, i=1):
        got = subject.attention_block(model, model.layers[i], x, kv.layers(LAYERS)[i])
        assert_true(isinstance(got, tuple | list) and len(got) == 3, "attention_block returns x, new keys, new values")
        want = [attention64(w, i, row, pair, window) for row, pair in zip(to_float64(x), past)]
        for value, expected, what in zip(got, zip(*want), ("x", "new keys", "new values")):
            close(value, expected, 1, what)

    @LENGTHS
    def test_against_float64(self, subject, rng, draw, L):
        """Two rows, nothing cached. The residual is x itself; heads lie side by side in q, k, v and again in what
        o_proj gets: [L, H * D]."""
        model, w = build(subject, rng)
        self.check(subject, model, w, draw(2, L, 45), subject.KVView.empty(2))

    @pytest.mark.parametrize("L", [1, 5])
    def test_after_cached_tokens(self, subject, rng, draw, L):
        """Rows with 3 and 10 tokens in the cache: the new ones of row b begin at position kv.lengths[b], and see those
        before them."""
        model, w = build(subject, rng)
        past = [[rng.standard_normal((2, G, T, D)).astype(np.float32) for T in (3, 10)] for _ in range(LAYERS)]
        self.check(subject, model, w, draw(2, L, 45), view_of(subject, rng, past), past[1])

    @pytest.mark.parametrize("model_type", ["llama", "qwen2"])
    def test_without_q_norm_and_k_norm(self, subject, rng, draw, model_type):
        """Llama and Qwen2 do not normalise heads: layer.q_norm and layer.k_norm are None, and go to qk_norm_rope as
        they are."""
        model, w = build(subject, rng, model_type)
        self.check(subject, model, w, draw(2, 7, 45), subject.KVView.empty(2))

    def test_window(self, subject, rng, draw):
        """layer.window = 3: a token sees itself and the two before it. Other layers of the same model see all."""
        kinds = ["full_attention", "sliding_attention", "full_attention"]
        model, w = build(subject, rng, layer_types=kinds, use_sliding_window=True, sliding_window=3)
        x = draw(2, 8, 45)
        self.check(subject, model, w, x, subject.KVView.empty(2), window=3)
        self.check(subject, model, w, x, subject.KVView.empty(2), i=2)

    def test_the_stream_goes_through_unchanged(self, subject, rng, draw):
        """With o_proj all zeros the block adds nothing: what comes out is x, not the normalised x."""
        model, _ = build(subject, rng)
        zeros = model.layers[1].o_proj._replace(weight=mx.zeros((45, H * D)))
        x = 100 * draw(2, 7, 45)
        got = subject.attention_block(model, model.layers[1]._replace(o_proj=zeros), x, subject.KVView.empty(2))
        assert_same(np.array(got[0]), np.array(x), what="x")


class TestTask2MlpBlock:
    @LENGTHS
    def test_against_float64(self, subject, rng, draw, L):
        """silu on the gate's side only, the block's second norm before, the residual x itself."""
        model, w = build(subject, rng)
        x = draw(2, L, 45)
        want = [mlp64(w, 1, row) for row in to_float64(x)]
        close(subject.mlp_block(model, model.layers[1], x), want, 1, "x")

    def test_biases(self, subject, rng, draw):
        """A projection brings its bias along: give the operations layer.gate_proj, not its weight alone."""
        model, w = build(subject, rng, "llama", mlp_bias=True)
        x = draw(2, 7, 45)
        want = [mlp64(w, 2, row) for row in to_float64(x)]
        close(subject.mlp_block(model, model.layers[2], x), want, 1, "x")

    def test_the_stream_goes_through_unchanged(self, subject, rng, draw):
        """With down_proj all zeros the block adds nothing: what comes out is x, not the normalised x."""
        model, _ = build(subject, rng)
        zeros = model.layers[1].down_proj._replace(weight=mx.zeros((45, 77)))
        x = 100 * draw(2, 7, 45)
        got = subject.mlp_block(model, model.layers[1]._replace(down_proj=zeros), x)
        assert_same(np.array(got), np.array(x), what="x")

    def test_each_token_alone(self, subject, rng, draw):
        """An MLP mixes nothing between tokens: one alone comes out as it does among others."""
        model, w = build(subject, rng)
        x = draw(1, 8, 45)
        want = mlp64(w, 0, to_float64(x)[0])
        close(subject.mlp_block(model, model.layers[0], x[:, 3:4]), [want[3:4]], 1, "x of the fourth token")


class TestTask3Forward:
    def run(self, subject, model, tokens, kv):
        got = subject.forward(model, mx.array(tokens), kv)
        assert_true(
            isinstance(got, tuple | list) and len(got) == 2, "forward returns hidden, and a list of keys and values"
        )
        assert_same(len(got[1]), LAYERS, what="number of layers' keys and values")
        return got

    def check(self, subject, model, w, tokens, kv, cached=(0, 0)):
        """tokens: each row's, of which the first cached[row] are in kv."""
        new = np.stack([row[start:] for row, start in zip(tokens, cached)])
        hidden, fresh = self.run(subject, model, new, kv)
        want = [forward64(w, row) for row in tokens]
        # Each layer adds its own error and may triple what it gets.
        close(hidden, [x[start:] for (x, _), start in zip(want, cached)], 3**LAYERS, "hidden")
        for i, pair in enumerate(fresh):
            for part, what in enumerate(("keys", "values")):
                rows = [kept[i][part][:, start:] for (_, kept), start in zip(want, cached)]
                close(pair[part], rows, 3**i, f"new {what} of layer {i}")

    @LENGTHS
    def test_against_float64(self, subject, rng, L):
        """Attention, then the MLP, on the stream that attention returned; no norm at the end, `head` does that one."""
        model, w = build(subject, rng)
        self.check(subject, model, w, rng.integers(0, 61, (2, L)), subject.KVView.empty(2))

    @pytest.mark.parametrize("L", [1, 4])
    def test_cached_prefix_is_as_the_whole(self, subject, rng, L):
        """5 and 9 tokens in the cache and L new ones give what all of them at once give: each layer reads its own view
        of the cache."""
        model, w = build(subject, rng)
        cached = (5, 9)
        tokens = [rng.integers(0, 61, start + L) for start in cached]
        kept = [forward64(w, row[:start])[1] for row, start in zip(tokens, cached)]
        kv = view_of(subject, rng, list(zip(*kept)))
        self.check(subject, model, w, tokens, kv, cached)

    def test_chunks_are_as_the_whole(self, subject, rng):
        """Your own keys and values of 6 tokens, put into the cache, serve the next 7."""
        model, w = build(subject, rng)
        tokens = rng.integers(0, 61, (2, 13))
        _, fresh = self.run(subject, model, tokens[:, :6], subject.KVView.empty(2))
        past = [list(zip(*(to_float64(part) for part in pair))) for pair in fresh]
        self.check(subject, model, w, tokens, view_of(subject, rng, past), (6, 6))

    @pytest.mark.parametrize("model_type", ["llama", "qwen2"])
    def test_other_families(self, subject, rng, model_type):
        """The same code runs Llama and Qwen2, without head norms, with and without biases."""
        model, w = build(subject, rng, model_type)
        self.check(subject, model, w, rng.integers(0, 61, (2, 7)), subject.KVView.empty(2))

    def test_a_layer_of_experts(self, subject, rng):
        """Layers 1 and 2 have a router: experts_block stands in for mlp_block there."""
        keys = {"num_experts": 3, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "mlp_only_layers": [0]}
        model, w = build(subject, rng, "qwen3_moe", **keys)  # all experts are chosen, so no near tie can be lost
        self.check(subject, model, w, rng.integers(0, 61, (2, 7)), subject.KVView.empty(2))

    @pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
    def test_in_the_dtype_of_the_model(self, subject, rng, dtype):
        """The stream has model.dtype: one float32 array in it, and every layer computes and caches in float32."""
        model, _ = build(subject, rng, dtype=dtype)
        hidden, fresh = self.run(subject, model, rng.integers(0, 61, (1, 7)), subject.KVView.empty(1))
        for array, what in ((hidden, "hidden"), (fresh[-1][0], "keys"), (fresh[-1][1], "values")):
            assert_same(str(array.dtype), str(dtype), what=f"dtype of {what}")
