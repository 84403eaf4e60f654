"""Gradients of every route of every operation: beside torch's (golden/make_gradients.py), and beside differences of its own values."""

import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from golden import gradient_cases as cases

from tinymlx import ops
from tinymlx.cache import KVView, PagePool
from tinymlx.kernels.gradient import differentiable, gradients
from tinymlx.kernels.rms_norm import rms_norm
from tinymlx.kernels.route import operations
from tinymlx.kernels.w4_matvec import w4_matvec

pytestmark = pytest.mark.capability("gradients equal torch's")

GOLDEN = np.load(Path(__file__).parent / "golden" / "gradients.npz")
EXPERTS = "norm_experts"  # torch has no such function: differences alone
TOLERANCE = 5e-6 if mx.default_device() == mx.cpu else 5e-5
needs_compiler = pytest.mark.skipif(
    mx.default_device() == mx.cpu and not any(map(shutil.which, ("g++", "clang++"))), reason="needs g++ or clang++"
)


def linear(a, layer):
    lora = ops.Lora(a[f"{layer}.lora_a"], a[f"{layer}.lora_b"], cases.LORA_SCALE) if f"{layer}.lora_a" in a else None
    if f"{layer}.weight" in a:
        return ops.Linear(a[f"{layer}.weight"], a.get(f"{layer}.bias"), lora=lora)
    codes = a[f"{layer}.codes"]
    words = (codes.reshape(codes.shape[0], -1, 8) << (4 * mx.arange(8, dtype=mx.uint32))).sum(axis=-1)
    scales, biases = a[f"{layer}.scales"], a[f"{layer}.biases"]
    return ops.Linear(words.astype(mx.uint32), None, scales, biases, ops.Quantization(cases.GROUP, 4), lora)


def view(a):
    """What is cached, in pages."""
    if "cached_k" not in a:
        return KVView.empty(cases.B)
    pool = PagePool(1, cases.G, cases.D, 4, mx.float32)
    tables = [pool.allocate(pool.pages_for(length)) for length in cases.LENGTHS]
    pool.write([(a["cached_k"], a["cached_v"])], tables, [0] * cases.B, cases.LENGTHS)
    return pool.view(tables, cases.LENGTHS).layers(1)[0]


def arguments(name, a):
    """The operation's arguments, and those that go by name."""
    operation, kind = name.split()[0], name.split()[-1]
    normed = (a.get("x"), a.get("norm"), cases.EPS)
    if operation == "qk_norm_rope":
        weights, periods = (a.get("q_weight"), a.get("k_weight")), mx.array(cases.PERIODS)
        return (a["q"], a["k"], *weights, cases.EPS, mx.array(cases.OFFSETS), periods, cases.SCALE), {}
    if operation == "attend":
        window = cases.WINDOW if kind == "window" else None
        return (a["q"], a["k"], a["v"], view(a)), {"scale": 0.25, "window": window}
    if operation == "embed":
        return (mx.array(cases.TOKENS), linear(a, "table"), mx.float32), {}
    if operation == "linear_residual":
        return (a["residual"], a["x"], linear(a, "w")), {}
    if operation == EXPERTS:
        layers = (ops.Linear(a[layer]) for layer in ("router", "gate", "up", "down"))
        return (*normed, *layers), {"top_k": 2, "normalize": True}
    return (*normed, *(linear(a, layer) for layer in cases.LINEARS[operation])), {}


def inputs(name):
    if name == EXPERTS:
        rng, K = np.random.default_rng(5), cases.K
        shapes = {
            "x": (1, 3, K),
            "norm": (K,),
            "router": (4, K),
            "gate": (4, 24, K),
            "up": (4, 24, K),
            "down": (4, K, 24),
        }
        arrays = {key: rng.standard_normal(shape).astype(np.float32) / 2 for key, shape in shapes.items()}
        return {key: mx.array(x) for key, x in arrays.items()}, list(arrays)
    return {key: mx.array(x) for key, x in cases.inputs(name).items()}, cases.differentiated(name)


def takes(route, name):
    args, kwargs = arguments(name, inputs(name)[0])
    return route.applies(*args, **kwargs)


def every_route(*names):
    """(name of a case, name of a route that takes it)"""
    pairs = [
        (name, key) for name in names for key, route in operations[name.split()[0]].routes.items() if takes(route, name)
    ]
    return pytest.mark.parametrize(
        "name, route", [pytest.param(*p, marks=needs_compiler if p[1] == "ours" else []) for p in pairs]
    )


def function_of(name, route):
    """(the outputs as a function of the list of inputs, these inputs, the cotangents)"""
    run, (frozen, wanted) = operations[name.split()[0]].routes[route].run, inputs(name)

    def outputs(changed):
        args, kwargs = arguments(name, frozen | dict(zip(wanted, changed)))
        made = run(*args, **kwargs)
        made = made if isinstance(made, tuple) else (made,)
        return made[:1] if name.startswith("attend") else made  # a route need not give the log-sum-exp

    at = [frozen[key] for key in wanted]
    return outputs, at, cases.cotangents(name, [y.shape for y in outputs(at)])


def gradient_of(name, route):
    outputs, at, weights = function_of(name, route)
    with gradients():
        return mx.grad(lambda changed: sum((y * mx.array(w)).sum() for y, w in zip(outputs(changed), weights)))(at)


@every_route(*cases.CASES)
def test_every_route_has_torchs_gradient(name, route):
    for key, got in zip(cases.differentiated(name), gradient_of(name, route), strict=True):
        want = GOLDEN[f"{name}/{key}"]
        assert np.abs(np.array(got) - want).max() <= TOLERANCE * np.abs(want).max(), key


@every_route(*cases.CASES, EXPERTS)
def test_every_route_has_the_gradient_of_its_own_values(name, route):
    """Differences along a direction that the gradient is half of: a large slope beside float32's noise."""
    outputs, at, weights = function_of(name, route)
    got = [np.array(g).astype(np.float64) for g in gradient_of(name, route)]
    rng = np.random.default_rng(3)
    drawn = [rng.standard_normal(g.shape) for g in got]
    direction = [d / norm(drawn) + g / norm(got) for d, g in zip(drawn, got)]

    def loss(step):
        made = outputs([x + mx.array((step * d).astype(np.float32)) for x, d in zip(at, direction)])
        return sum((np.array(y).astype(np.float64) * w).sum() for y, w in zip(made, weights))

    wide, narrow = ((loss(step) - loss(-step)) / (2 * step) for step in (2**-4, 2**-5))
    slope = (4 * narrow - wide) / 3  # without the error of order step^2
    assert abs(slope - sum((g * d).sum() for g, d in zip(got, direction))) <= 6 * TOLERANCE * norm(got)


def norm(arrays):
    return sum((a**2).sum() for a in arrays) ** 0.5


# The kernels


def draw(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def twin_of_rms_norm(x, weight, eps, residual=None):
    h = x if residual is None else x + residual
    return ops.rms_norm(h, weight, eps) if residual is None else (ops.rms_norm(h, weight, eps), h)


@needs_compiler
@pytest.mark.parametrize("residual", [False, True])
def test_rms_norm_has_its_twins_gradient(residual):
    args = [draw(3, 33), draw(33, seed=1), *([draw(3, 33, seed=2)] if residual else [])]
    cotangents = [draw(3, 33, seed=3), draw(3, 33, seed=4)][: 1 + residual]

    def gradient(run):
        def called(x, weight, r=None):
            y = run(x, weight, 1e-6, r)
            return list(y) if residual else [y]

        return mx.vjp(called, args, cotangents)[1]

    with gradients():
        got = gradient(rms_norm)
    for g, want in zip(got, gradient(twin_of_rms_norm), strict=True):
        assert mx.abs(g - want).max().item() < 1e-5 < mx.abs(g).max().item()


@needs_compiler
def test_a_kernel_differentiated_alone_raises():
    """On a CPU it runs as it is called, and its gradient would be zero in silence."""
    w = linear({k: mx.array(x) for k, x in cases.inputs("head packed").items()}, "w")._replace(lora=None)
    x = draw(2, cases.K)
    calls = {
        "rms_norm": lambda x: rms_norm(x, mx.ones(cases.K), 1e-6),
        "w4_matvec": lambda x: w4_matvec(x, w),
    }
    for call in calls.values():
        with pytest.raises((NotImplementedError, ValueError), match="no gradient|[Nn]ot implemented"):
            mx.eval(mx.grad(lambda x: call(x).sum())(x))
        with gradients():  # through another's gradient
            mx.eval(mx.grad(lambda x: (call(mx.stop_gradient(x)) + x.sum()).sum())(x))
    with gradients():
        matvec = differentiable(w4_matvec, ops.linear)
        got = mx.grad(lambda x: (matvec(x, w) ** 2).sum())(x)
    want = mx.grad(lambda x: (ops.linear(x, w) ** 2).sum())(x)
    assert mx.abs(got - want).max().item() < 1e-4 * mx.abs(want).max().item()


def doubled_gradient():
    """x W, with a gradient that is twice too large: it shows whose it is. The index has none."""
    return differentiable(lambda x, w, i: (x @ w)[i], lambda x, w, i: 2 * (x @ w)[i])


@needs_compiler
def test_the_twins_gradient_is_the_one_under_gradients_and_compiled_too():
    function, x, w, i = doubled_gradient(), draw(2, 4), draw(4, 4, seed=1), mx.array([1, 0, 1])
    gradient = mx.compile(mx.grad(lambda x, w, i: function(x, w, i).sum(), argnums=(0, 1)))
    want = mx.grad(lambda x, w: (x @ w)[i].sum(), argnums=(0, 1))(x, w)
    assert all(map(mx.allclose, mx.grad(lambda x, w: function(x, w, i).sum(), argnums=(0, 1))(x, w), want))
    with gradients():
        first = gradient(x, w, i)
    for got in (first, gradient(x, w, i)):
        assert all(map(mx.allclose, got, (2 * g for g in want)))


def test_inference_has_nothing_of_it(tmp_path):
    function, args = doubled_gradient(), (draw(2, 4), draw(4, 4, seed=1), mx.array([1, 0]))

    def graph(call):
        mx.export_to_dot(str(tmp_path / "graph"), mx.compile(call)(*args))
        return (tmp_path / "graph").read_text()

    assert "CustomTransforms" not in graph(lambda *args: function(*args))
    with gradients():
        assert "CustomTransforms" in graph(lambda *args: function(*args))
