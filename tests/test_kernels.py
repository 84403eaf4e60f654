"""Every route of a coarse operation against its twin, and the way a route is chosen."""

import mlx.core as mx
import numpy as np
import pytest

from tinymlx import kernels, ops
from tinymlx.cache import KVView, PagePool
from tinymlx.errors import UserError
from tinymlx.kernels.route import operations

pytestmark = pytest.mark.capability("kernels equal their twins")

SIZES = (1, 7, 8, 31, 33)


def draw(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def packed(N, K, seed, bits=4, *lead):
    w = draw(*lead, N, K, seed=seed) / K**0.5
    quantization = ops.Quantization(32, bits)
    weight, scales, biases = mx.quantize(w, group_size=32, bits=bits)
    return ops.Linear(weight, None, scales, biases, quantization)


def dense(N, K, seed, *lead):
    return ops.Linear(draw(*lead, N, K, seed=seed) / K**0.5)


def weights_of(kind):
    return packed if kind == "packed" else dense


def routes_agree(operation, *args, bound=3e-6, **kwargs):
    """Every route that takes the arguments gives what the twin gives."""
    want = operation.routes["twin"].run(*args, **kwargs)
    tried = 0
    for name, route in operation.routes.items():
        if name != "twin" and route.applies(*args, **kwargs):
            got = route.run(*args, **kwargs)
            pairs = zip(got, want) if isinstance(want, tuple) else [(got, want)]
            for g, w in pairs:
                if g is not None:
                    assert g.shape == w.shape and g.dtype == w.dtype
                    assert mx.abs(g - w).max().item() <= bound * max(mx.abs(w).max().item(), 1.0), name
            tried += 1
    return tried


KINDS = pytest.mark.parametrize("kind", ["dense", "packed"])


@pytest.mark.parametrize(
    "kind, L",
    [
        pytest.param(kind, L, marks=[pytest.mark.full] if kind == "packed" and L in (7, 8, 31) else [])
        for kind in ("dense", "packed")  # packed: our Metal kernels are compiled for each number of rows
        for L in SIZES
    ],
)
def test_linear_operations(kind, L):
    make = weights_of(kind)
    x, norm = draw(2, L, 64), 1 + 0.1 * draw(64, seed=1)
    assert routes_agree(kernels.norm_qkv, x, norm, 1e-6, make(96, 64, 2), make(32, 64, 3), make(32, 64, 4))
    assert routes_agree(kernels.norm_gate_up, x, norm, 1e-6, make(96, 64, 2), make(96, 64, 3))
    assert routes_agree(kernels.linear_residual, x, draw(2, L, 96, seed=5), make(64, 96, 6))
    assert routes_agree(kernels.head, x, norm, 1e-6, make(131, 64, 7))


@KINDS
def test_linear_with_bias_and_adapter(kind):
    w = weights_of(kind)(33, 64, 1)
    bias, lora = draw(33, seed=2), ops.Lora(draw(4, 64, seed=3), draw(33, 4, seed=4), 0.5, 1 + 0.1 * draw(33, seed=5))
    for changed in (w._replace(bias=bias), w._replace(lora=lora), w._replace(bias=bias, lora=lora)):
        for L in (1, 9):
            assert routes_agree(kernels.linear_residual, draw(1, L, 33), draw(1, L, 64, seed=6), changed, bound=1e-5)


@pytest.mark.parametrize("L", SIZES)
@pytest.mark.parametrize("qk_norm", [True, False])
def test_qk_norm_rope(L, qk_norm):
    periods, scale = ops.rope_periods(
        16, 1e4, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    )
    weights = (1 + 0.1 * draw(16), 1 + 0.1 * draw(16, seed=1)) if qk_norm else (None, None)
    offsets = mx.array([0, 41])
    assert routes_agree(
        kernels.qk_norm_rope,
        draw(2, L, 64),
        draw(2, L, 32, seed=2),
        *weights,
        1e-6,
        offsets,
        periods,
        scale,
        bound=2e-5,
    )


@pytest.mark.parametrize("L", SIZES)
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("lengths", [(0, 0), (16, 5), (1, 33)])
def test_attend(L, window, lengths):
    pool = PagePool(3, 2, 16, 8, mx.float32)
    pool.array = draw(*pool.array.shape, seed=9)
    tables = [pool.allocate(pool.pages_for(n)) for n in lengths]
    view = pool.view(tables, lengths).layers(3)[1]
    q, k, v = draw(2, 4, L, 16), draw(2, 2, L, 16, seed=1), draw(2, 2, L, 16, seed=2)
    assert routes_agree(kernels.attend, q, k, v, view, scale=0.25, window=window)
    ragged = view._replace(new_lengths=mx.array([L, max(1, L // 2)]))
    assert routes_agree(kernels.attend, q, k, v, ragged, scale=0.25, window=window)
    if L > 1:
        assert routes_agree(kernels.attend, q, k, v, KVView.empty(2), scale=0.25, window=window)


def test_attend_over_pages_equals_attention_over_the_whole():
    """Cached in pages or given at once: the same keys, the same answer."""
    T, cached = 37, 21
    q, k, v = draw(1, 4, T, 16), draw(1, 2, T, 16, seed=1), draw(1, 2, T, 16, seed=2)
    whole, _ = kernels.attend(q, k, v, KVView.empty(1), scale=0.25)
    pool = PagePool(2, 2, 16, 4, mx.float32)
    pool.array = mx.full(pool.array.shape, 1e9)  # what nobody wrote must not leak
    pool.allocate(1)
    table = pool.allocate(2)[::-1]
    first = (k[:, :, :cached], v[:, :, :cached])
    pool.write([(mx.zeros_like(first[0]),) * 2, first], [table], [0], [cached])
    view = pool.view([table], [cached]).layers(2)[1]
    for route in kernels.attend.routes.values():
        part, _ = route.run(q[:, :, cached:], k[:, :, cached:], v[:, :, cached:], view, scale=0.25)
        assert mx.abs(part - whole[:, :, cached:]).max().item() < 2e-6


def test_attend_gives_lse_when_asked():
    q, k, v = draw(1, 4, 7, 16), draw(1, 2, 7, 16, seed=1), draw(1, 2, 7, 16, seed=2)
    _, lse = kernels.attend(q, k, v, KVView.empty(1), scale=0.25, want_lse=True)
    assert lse.shape == (1, 4, 7)


@KINDS
@pytest.mark.parametrize("L", [1, 7, 33])
@pytest.mark.parametrize("normalize", [True, False])
def test_experts(kind, L, normalize):
    make = (
        (lambda N, K, seed: packed(N, K, seed, 4, 6)) if kind == "packed" else (lambda N, K, seed: dense(N, K, seed, 6))
    )
    x, norm = draw(2, L, 64), 1 + 0.1 * draw(64, seed=1)
    args = (x, norm, 1e-6, dense(6, 64, 2), make(96, 64, 3), make(96, 64, 4), make(64, 96, 5))
    assert routes_agree(kernels.norm_experts, *args, top_k=3, normalize=normalize)
    lora = ops.Lora(0.3 * draw(6, 2, 64, seed=6), 0.3 * draw(6, 96, 2, seed=7), 0.5)
    adapted = (*args[:4], args[4]._replace(lora=lora), *args[5:])
    assert routes_agree(kernels.norm_experts, *adapted, top_k=3, normalize=normalize, bound=1e-5)
    plain, changed = (kernels.norm_experts(*a, top_k=3, normalize=normalize) for a in (args, adapted))
    assert mx.abs(plain - changed).max().item() > 1e-3


def test_every_operation_covers_ops_that_exist():
    for operation in operations.values():
        assert operation.covers and all(hasattr(ops, name) for name in operation.covers)
        assert "twin" in operation.routes


def calls():
    """Each operation with arguments that reach all of it."""
    x, norm, w, p = draw(1, 2, 64), mx.ones(64), dense(64, 64, 1), packed(64, 64, 1)
    heads, k = draw(1, 2, 2, 16), draw(1, 1, 2, 16)
    pool = PagePool(1, 1, 16, 2, mx.float32)
    view = pool.view([pool.allocate(1)], [3])
    periods, _ = ops.rope_periods(16, 1e4)
    experts = (dense(6, 64, 2), packed(96, 64, 3, 4, 6), packed(96, 64, 4, 4, 6), packed(64, 96, 5, 4, 6))
    return {
        "embed": lambda: kernels.embed(mx.array([[1]]), p, mx.float32),
        "norm_qkv": lambda: kernels.norm_qkv(x, norm, 1e-6, p, w, p),
        "qk_norm_rope": lambda: kernels.qk_norm_rope(x, x, mx.ones(16), mx.ones(16), 1e-6, mx.array([0]), periods, 1.0),
        "attend": lambda: kernels.attend(heads, k, k, view, scale=1.0),
        "linear_residual": lambda: kernels.linear_residual(x, x, p),
        "norm_gate_up": lambda: kernels.norm_gate_up(x, norm, 1e-6, p, p),
        "head": lambda: kernels.head(x, norm, 1e-6, p),
        "norm_experts": lambda: kernels.norm_experts(x, norm, 1e-6, *experts, top_k=2, normalize=True),
    }


@pytest.mark.parametrize("name, covered", [(o.name, op) for o in operations.values() for op in o.covers])
def test_a_graft_reaches_every_operation_that_says_it_covers_it(name, covered):
    original, count = getattr(ops, covered), []

    def counting(*args, **kwargs):
        count.append(1)
        return original(*args, **kwargs)

    with kernels.graft(**{covered: counting}):
        calls()[name]()
    assert count


def test_a_graft_changes_results_and_ends(monkeypatch):
    monkeypatch.delenv("TINYMLX_KERNELS", raising=False)
    x, norm, w = draw(1, 2, 64), mx.ones(64), dense(32, 64, 1)
    before = kernels.head(x, norm, 1e-6, w)
    key = kernels.compile_key()
    with kernels.graft(rms_norm=lambda x, weight, eps: mx.zeros_like(x)):
        assert kernels.compile_key() != key
        assert mx.all(kernels.head(x, norm, 1e-6, w) == 0)
        assert mx.all(kernels.norm_gate_up(x, norm, 1e-6, w, w) == 0)
        with kernels.graft(linear=lambda x, w: mx.ones((*x.shape[:-1], 32))):
            assert mx.all(kernels.head(x, norm, 1e-6, w) == 1)
        assert mx.all(kernels.head(x, norm, 1e-6, w) == 0)
    assert kernels.compile_key() == key
    assert mx.array_equal(kernels.head(x, norm, 1e-6, w), before)


def test_a_graft_ends_with_an_exception_and_unknown_names_are_refused():
    original = ops.rms_norm
    with pytest.raises(RuntimeError), kernels.graft(rms_norm=None):
        raise RuntimeError
    assert ops.rms_norm is original
    with pytest.raises(AttributeError), kernels.graft(no_such_op=None):
        pass


def test_preference_from_the_environment(monkeypatch):
    monkeypatch.setenv("TINYMLX_KERNELS", "reference")
    assert list(kernels.head.candidates()) == ["twin"]
    monkeypatch.setenv("TINYMLX_KERNELS", "fast")
    with pytest.raises(UserError, match="TINYMLX_KERNELS=fast"):
        kernels.head.candidates()
