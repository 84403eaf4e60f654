"""Our Metal kernels: right on whatever this machine computes on, and clean under the host checker."""

import sys

import mlx.core as mx
import numpy as np
import pytest
from test_session import PROMPT, Letters, answer
from tiny import quantized_weights, tiny_config, tiny_weights

from tinymlx import ops, paths
from tinymlx.cache import PagePool
from tinymlx.engine import Session
from tinymlx.errors import UserError
from tinymlx.kernels import metal
from tinymlx.kernels.cases import KERNELS, excess
from tinymlx.kernels.gradient import gradients
from tinymlx.kernels.host import strict
from tinymlx.kernels.norm_gate_up import ours as norm_gate_up
from tinymlx.kernels.norm_qkv import ours as norm_qkv
from tinymlx.kernels.qk_norm_rope import ours as qk_norm_rope
from tinymlx.kernels.rms_norm import rms_norm
from tinymlx.kernels.route import operations
from tinymlx.kernels.w4_matmul import w4_matmul
from tinymlx.kernels.w4_matvec import w4_matvec
from tinymlx.models.config import ModelConfig
from tinymlx.models.qwen3 import Qwen3

w4_module = sys.modules["tinymlx.kernels.w4_matvec"]
SEED = 7
CASES = [(name, index) for name, cases in KERNELS.items() for index, _ in enumerate(cases(np.random.default_rng(SEED)))]


# Each shape is compiled anew on a machine without a cache: the short run takes every fifteenth, watched or not.
SHORT = [pytest.param(*case, marks=[pytest.mark.full] if case[1] % 15 else []) for case in CASES]


def case_of(name, index):
    return list(KERNELS[name](np.random.default_rng(SEED)))[index]


def test_every_file_has_cases_and_a_head():
    files = {file.stem: file.read_text() for file in paths.metal_kernels().glob("*.metal")}
    assert files.keys() == KERNELS.keys()
    for name, text in files.items():
        assert text.startswith(f"// {name}: ")
        for part in ("Shapes", "Grid", "Picture", "Scratch", "Numbers", "Bound by", "Reference  tinymlx/ops/", "week "):
            assert part in text.partition("\n\n")[0] + text, (name, part)
    for file in paths.metal_kernels().rglob("*.metal"):
        assert all(len(line) <= 140 for line in file.read_text().splitlines()), file


@pytest.mark.capability("our Metal kernels", host_checked=("apple",))
@pytest.mark.parametrize("name, index", SHORT)
def test_right_here(name, index):
    case = case_of(name, index)
    assert excess(case, case.run()) <= 1, case.label


@pytest.mark.capability("our Metal kernels", host_checked=("apple",))
@pytest.mark.parametrize("name, index", SHORT)
def test_clean_under_the_checker(name, index):
    case = case_of(name, index)
    with metal.host_checked() as reports:
        got = case.run()
    assert excess(case, got) <= 1
    assert reports and not any(report.findings for report in reports), reports[0]


@pytest.mark.parametrize(
    "name, keys",
    [("w4_matvec", ("T",)), ("qk_norm_rope", ("T",))]
    + [pytest.param(name, ("T", "BITS", "MX"), marks=pytest.mark.full) for name in KERNELS],
)
def test_metal_takes_the_text(name, keys, monkeypatch):
    """The strict pass: address spaces and the bans of Metal, for every dtype, and every packing."""
    needs_clang()
    seen = set()

    def parse(self, *inputs, template, grid, threadgroup, shapes, dtypes):
        kind = tuple(str(template.get(key)) for key in keys)
        if kind not in seen:
            arrays = [metal._at_least_8(x) for x in inputs]
            found = self.host.strict(
                inputs=arrays, template=list(template.items()), output_shapes=shapes, output_dtypes=dtypes
            )
            assert not found, (kind, *map(str, found))
        seen.add(kind)
        return [mx.zeros(shape, dtype) for shape, dtype in zip(shapes, dtypes)]

    monkeypatch.setattr(metal.MetalKernel, "__call__", parse)
    for case in KERNELS[name](np.random.default_rng(SEED)):
        case.run()
    assert len(seen) >= 3


def needs_clang():
    try:
        strict.clang()
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture
def matrix_units(monkeypatch):
    """As if this machine had tensor cores: the text that CUDA runs, with Metal's layout of fragments."""
    monkeypatch.setattr(w4_module, "on_matrix_units", lambda x, normed: True)


MATRIX = [(name, i) for name, i in CASES if name in ("w4_matvec", "norm_qkv", "norm_gate_up")]


@pytest.mark.parametrize(
    "name, index", [pytest.param(*case, marks=[pytest.mark.full] if case[1] % 15 != 2 else []) for case in MATRIX]
)
def test_matrix_units_are_right_and_clean(name, index, matrix_units):
    test_clean_under_the_checker(name, index)


def drawn(N, K, group=64, seed=SEED):
    rng = np.random.default_rng(seed)
    arrays = mx.quantize(mx.array(rng.standard_normal((N, K)).astype(np.float32)), group_size=group)
    return ops.Linear(arrays[0], None, *arrays[1:], ops.Quantization(group, 4))


@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize(
    "group", [pytest.param(32, marks=pytest.mark.full), 64, pytest.param(128, marks=pytest.mark.full)]
)
def test_weights_and_scales_are_read_once_for_all_rows(matrix, group, monkeypatch):
    monkeypatch.setattr(w4_module, "on_matrix_units", lambda x, normed: matrix)
    x, norm = mx.random.normal((4, 2048)), mx.ones(2048)
    with metal.host_checked() as reports:
        w4_matvec(x, drawn(64, 2048, group))
        norm_qkv(x, norm, 1e-6, *(drawn(N, 2048, group) for N in (64, 32, 32)))
        norm_gate_up(x, norm, 1e-6, drawn(32, 2048, group), drawn(32, 2048, group))
    for report in reports:
        packings = {name: t for name, t in report.traffic.items() if name[0] in "wsb" and name != "weight"}
        assert len(packings) in (3, 6, 9)
        assert all(t.read == t.distinct == t.size for t in packings.values()), packings


@pytest.mark.parametrize("matrix", [False, True])
def test_a_row_does_not_depend_on_the_others(matrix, monkeypatch):
    monkeypatch.setattr(w4_module, "on_matrix_units", lambda x, normed: matrix)
    w, x, weight = drawn(33, 2112), mx.random.normal((16, 2112)), mx.random.normal((2112,))
    together = w4_matvec(x, w, norm=(weight, 1e-6))
    for row in (0, 7, 15):
        assert mx.array_equal(w4_matvec(x[row : row + 1], w, norm=(weight, 1e-6))[0], together[row])


def test_a_row_of_a_matmul_does_not_depend_on_the_others():
    w, x = drawn(33, 1088), mx.random.normal((40, 1088))
    together = w4_matmul(x, w)
    for rows in (slice(0, 1), slice(31, 40)):
        assert mx.array_equal(w4_matmul(x[rows], w), together[rows])


def test_what_an_include_brings_comes_once():
    text = metal.source("w4_matvec")
    assert "#include" not in text and text.count("inline void load8(const device half*") == 1


def packed(bits=4, group=64, mode="affine", K=128, dtype=mx.float32):
    weight, scales, biases = mx.quantize(mx.ones((8, K)), group_size=group, bits=bits)
    return ops.Linear(weight, None, scales.astype(dtype), biases, ops.Quantization(group, bits, mode))


@pytest.mark.parametrize(
    "x, w, said",
    [
        (mx.ones((1, 128)), ops.Linear(mx.ones((8, 128))), "packed as None; affine with 4 or 8 bits and mxfp4"),
        (mx.ones((1, 128)), packed(bits=3), "bits=3"),
        (mx.ones((1, 128)), packed(mode="mxfp4"), "group_size is 64 and K 128; 32 that divide K"),
        (mx.ones((1, 128)), packed()._replace(scales=mx.ones((8, 1))), r"scales has shape \(8, 1\)"),
        (mx.ones((1, 128)), packed()._replace(biases=None), "biases has shape None"),
        (
            mx.ones((1, 128)),
            packed()._replace(biases=mx.ones((8, 2), mx.float16)),
            "scales is mlx.core.float32 and biases",
        ),
        (mx.ones((1, 0)), packed()._replace(weight=mx.zeros((8, 0), mx.uint32)), "K 0"),
        (mx.ones((1, 96)), packed(), r"x has shape \(1, 96\); w of \(8, 16\) needs \[..., 128\]"),
        (mx.ones((1, 256)), packed(), r"needs \[..., 128\]"),
        (mx.ones((1, 96)), packed(K=96, group=32)._replace(quantization=ops.Quantization(64, 4)), "divide K"),
        (mx.ones((1, 128)), packed()._replace(weight=mx.ones((8, 16))), r"uint32 \[N, K \* 4 / 32\]"),
        (mx.ones((1, 128), mx.int32), packed(), "x is mlx.core.int32"),
        (mx.ones((1, 128)), packed(dtype=mx.int32), "scales is mlx.core.int32"),
        (mx.ones((17, 128)), packed(), "17 rows; at most 16"),
    ],
)
def test_w4_kernels_name_what_they_do_not_take(x, w, said):
    with pytest.raises(ValueError, match=said):
        w4_matvec(x, w)
    if "rows" not in said:
        with pytest.raises(ValueError, match=said):
            w4_matmul(x, w)


@pytest.mark.parametrize(
    "given, said",
    [
        ({"delta": mx.ones((1, 7))}, r"delta is mlx.core.float32 \(1, 7\)"),
        ({"residual": mx.ones((1, 8), mx.float16)}, "residual is mlx.core.float16"),
        ({"norm": (mx.ones(64), 1e-6)}, r"weight is mlx.core.float32 \(64,\)"),
        ({"norm": (mx.ones(128, mx.int32), 1e-6)}, "weight is mlx.core.int32"),
    ],
)
def test_w4_matvec_names_what_does_not_fit(given, said):
    with pytest.raises(ValueError, match=said):
        w4_matvec(mx.ones((1, 128)), packed(), **given)


@pytest.mark.parametrize(
    "arguments, said",
    [
        ((mx.ones((2, 8), mx.int32), mx.ones(8), 1e-6), "x is mlx.core.int32"),
        ((mx.ones((2, 8)), mx.ones(7), 1e-6), r"weight is mlx.core.float32 \(7,\)"),
        ((mx.ones((2, 8)), mx.ones(8), 1e-6, mx.ones((1, 8))), "residual is"),
        ((mx.array(1.0), mx.ones(1), 1e-6), "weight is"),
        ((mx.ones((2, 8)), mx.ones(8, mx.int32), 1e-6), "weight is mlx.core.int32"),
    ],
)
def test_rms_norm_names_what_it_does_not_take(arguments, said):
    with pytest.raises(ValueError, match=said):
        rms_norm(*arguments)


def heads(**changed):
    """Arguments of qk_norm_rope: four query heads and two of keys, of 16, in two rows of three tokens."""
    arguments = {
        "q": mx.random.normal((2, 3, 64)),
        "k": mx.ones((2, 3, 32)),
        "q_weight": mx.ones(16),
        "k_weight": mx.ones(16),
        "eps": 1e-6,
    }
    return arguments | {"offsets": mx.array([0, 7]), "periods": mx.ones(8), "scale": 1.0} | changed


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"q": mx.ones((2, 3, 64), mx.int32)}, "q is mlx.core.int32"),
        ({"k": mx.ones((2, 3, 32), mx.float16)}, "and k mlx.core.float16"),
        ({"q": mx.ones((2, 3, 72))}, "a multiple of 16"),
        ({"k": mx.ones((1, 3, 32))}, "k has shape"),
        ({"q_weight": None}, "q_weight is None"),
        ({"k_weight": mx.ones(15)}, r"k_weight is mlx.core.float32 \(15,\)"),
        ({"offsets": mx.array([0])}, "offsets is"),
        ({"offsets": mx.zeros(2)}, "offsets is mlx.core.float32"),
        ({"periods": mx.ones((8, 1))}, "periods is"),
    ],
)
def test_qk_norm_rope_names_what_it_does_not_take(changed, said):
    with pytest.raises(ValueError, match=said):
        qk_norm_rope(**heads(**changed))


def test_empty_batches():
    q, k = qk_norm_rope(**heads(q=mx.ones((2, 0, 64)), k=mx.ones((2, 0, 32))))
    assert q.shape == (2, 4, 0, 16) and k.shape == (2, 2, 0, 16)
    assert rms_norm(mx.zeros((0, 8)), mx.ones(8), 1e-6).shape == (0, 8)
    assert w4_matvec(mx.zeros((0, 128)), packed()).shape == (0, 8)
    assert w4_matmul(mx.zeros((2, 0, 128)), packed()).shape == (2, 0, 8)


def test_a_transposed_input_is_taken_as_it_is():
    x = mx.random.normal((128, 3)).T
    assert mx.allclose(rms_norm(x, mx.ones(128), 1e-6), ops.rms_norm(x, mx.ones(128), 1e-6), atol=1e-6)
    assert mx.allclose(w4_matvec(x, packed()), x @ ops.dequantize(packed()).T, atol=1e-4)
    turned = heads(q=mx.random.normal((64, 3, 2)).T)
    assert mx.allclose(qk_norm_rope(**turned)[0], operations["qk_norm_rope"].routes["twin"].run(**turned)[0], atol=1e-5)


PACKED = {"group_size": 32, "bits": 4}
WIDTHS = {"hidden_size": 64, "intermediate_size": 96}


def packed_model():
    config = tiny_config(**WIDTHS)
    weights = quantized_weights(tiny_weights(config), PACKED)
    packings = {name.removesuffix(".scales"): ops.Quantization(32, 4) for name in weights if name.endswith(".scales")}
    return Qwen3(ModelConfig.from_dict(config), {name: mx.array(w) for name, w in weights.items()}, packings)


@pytest.mark.full
def test_the_model_answers_the_same_with_our_kernels(monkeypatch):
    answers = {}
    for choice in ("mlx", "ours"):
        monkeypatch.setenv("TINYMLX_KERNELS", choice)
        answers[choice] = answer(Session(packed_model(), Letters()), PROMPT, 12)
    assert answers["ours"] == answers["mlx"] and len(answers["mlx"]) == 12


def test_five_launches_a_layer_beside_attention(monkeypatch):
    """ARCHITECTURE's seven less attention and its merge pass, which are not ours yet."""
    monkeypatch.setenv("TINYMLX_KERNELS", "ours")
    model, launched = packed_model(), []

    def record(self, *inputs, shapes, dtypes, **launch):
        launched.append(self.name)
        return [mx.zeros(shape, dtype) for shape, dtype in zip(shapes, dtypes)]

    monkeypatch.setattr(metal.MetalKernel, "__call__", record)
    config = model.config
    pool = PagePool(config.num_hidden_layers, config.num_key_value_heads, config.head_dim, 8, mx.float32)
    hidden, _ = model(mx.array([[3]]), pool.view([[]], [0]))
    model.head(hidden)
    layer = ["norm_qkv", "qk_norm_rope", "w4_matvec", "norm_gate_up", "w4_matvec"]
    assert launched == ["embed_w4", *layer * config.num_hidden_layers, "w4_matvec"]


def test_operations_leave_to_others_what_ours_would_answer_otherwise():
    """A norm's weight of another dtype makes outputs wider elsewhere; a residual that is broadcast; bias and DoRA."""
    x, w, norm = mx.ones((1, 3, 128), mx.float16), packed(), mx.ones(128)
    route = lambda name: operations[name].routes["ours"]  # noqa: E731
    assert not route("head").applies(x, norm, 1e-6, w) and route("head").applies(x, norm.astype(mx.float16), 1e-6, w)
    assert not route("norm_qkv").applies(x, norm, 1e-6, w, w, w)
    assert not route("norm_gate_up").applies(x, norm, 1e-6, w, w)
    assert not route("linear_residual").applies(mx.ones(8, mx.float16), x, w)
    assert not route("linear_residual").applies(mx.ones((1, 3, 8)), x, w)
    assert not route("linear_residual").applies(mx.ones((1, 3, 8), mx.float16), x, w._replace(bias=mx.ones(8)))
    dora = ops.Lora(mx.ones((2, 128)), mx.ones((8, 2)), 1.0, mx.ones(8))
    assert not route("linear_residual").applies(mx.ones((1, 3, 8), mx.float16), x, w._replace(lora=dora))


@pytest.mark.parametrize(
    "tokens, table, said",
    [
        (mx.array([1.0]), packed(), "tokens is mlx.core.float32"),
        (mx.array([1]), packed()._replace(scales=mx.ones((3, 2))), "scales has shape"),
        (mx.array([1]), packed()._replace(biases=None), "biases has shape None"),
        (
            mx.array([1]),
            packed()._replace(**{n: mx.zeros((0, k)) for n, k in (("scales", 2), ("biases", 2))}),
            "scales has",
        ),
    ],
)
def test_embed_names_what_it_does_not_take(tokens, table, said):
    with pytest.raises(ValueError, match=said):
        operations["embed"].routes["ours"].run(tokens, table, mx.float32)
    assert not operations["embed"].routes["ours"].applies(tokens, table, mx.float32)


def test_forward_mode_raises_and_is_not_zero():
    x, w = mx.ones((1, 128)), packed()
    with pytest.raises(NotImplementedError):
        mx.eval(mx.jvp(lambda a: w4_matvec(a, w), [x], [x])[1])
    with gradients(), pytest.raises(NotImplementedError):
        mx.eval(mx.jvp(lambda a: operations["head"].routes["ours"].run(a, mx.ones(128), 1e-6, w), [x], [x])[1])


def test_narrow_offsets_do_not_wrap():
    q, k, periods = mx.random.normal((1, 300, 4)), mx.random.normal((1, 300, 4)), mx.array([1.0, 50.0])
    for offsets in (mx.array([0], mx.uint8), mx.array([4_000_000_000], mx.uint32)):
        got = qk_norm_rope(q, k, None, None, 1e-6, offsets, periods, 1.0)[0]
        want = (
            operations["qk_norm_rope"]
            .routes["twin"]
            .run(q, k, None, None, 1e-6, offsets.astype(mx.int64), periods, 1.0)
        )
        assert mx.abs(got - want[0]).max() < (1e-3 if offsets.dtype == mx.uint8 else 10)
