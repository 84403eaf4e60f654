"""The operator table against counts made another way: tensors that exist, the figures of `memory.sizes`, arrays as they come."""

from math import prod

import mlx.core as mx
import pytest
from one_line import fails
from tiny import tiny_config, tiny_weights

from tinymlx import cli
from tinymlx.cache import KVView
from tinymlx.cli.learn import official
from tinymlx.memory import sizes
from tinymlx.models.config import ModelConfig
from tinymlx.models.operators import operators, total
from tinymlx.models.qwen3 import Qwen3, tensor_shapes

DENSE = [size for size in sizes.SIZES if not size.experts]


def parameters(config: ModelConfig) -> int:
    """Of the weights that the table names, a tied embedding once."""
    listed = operators(config, 1, 0)
    twice = config.vocab_size * config.hidden_size if config.tie_word_embeddings else 0
    return sum(prod(o.weight) * o.times for o in listed if o.weight) - twice


def test_qwen3_0_6b_has_as_many_parameters_as_its_checkpoint():
    assert parameters(official("0.6B")[1]) == 596_049_920


@pytest.mark.parametrize("size", DENSE, ids=lambda size: size.name)
def test_parameters_are_those_of_the_tensors(size):
    config = official(size.name)[1]
    assert parameters(config) == sum(prod(shape) for part in tensor_shapes(config) for shape in part.values())


@pytest.mark.parametrize("size", DENSE, ids=lambda size: size.name)
@pytest.mark.parametrize("packing", sizes.PACKINGS)
def test_decoding_reads_and_computes_what_sizes_says(size, packing):
    cached, config = 511, official(size.name)[1]
    step = total(operators(config, 1, cached, weight_bytes=sizes.bytes_per_weight(packing)))
    assert step.flops == sizes.flops_per_token(size, cached + 1)
    assert step.kv_bytes == (cached + 1) * sizes.kv_bytes_per_token(size)
    row = size.hidden * sizes.bytes_per_weight(packing)  # of the embedding
    norms = 2 * (size.layers * 2 * (size.hidden + sizes.HEAD_DIM) + size.hidden)
    assert step.weight_bytes == sizes.bytes_per_token(size, packing) + row + norms


@pytest.mark.parametrize("tokens, cached, rows", [(1, 0, 1), (7, 0, 1), (33, 31, 3), (512, 0, 2)])
def test_flops_are_two_a_parameter_and_token_and_four_a_pair_that_sees_each_other(tokens, cached, rows):
    size, config = sizes.SIZES[0], official("0.6B")[1]
    blocks = sizes.matmul_weights(size, 0) - sizes.VOCAB * size.hidden
    pairs = sum(cached + position + 1 for position in range(tokens))
    attention = 4 * pairs * size.heads * sizes.HEAD_DIM * size.layers
    expected = rows * (2 * blocks * tokens + attention + 2 * sizes.VOCAB * size.hidden)
    step = total(operators(config, tokens, cached, rows))
    assert step.flops == expected
    assert step.kv_bytes == rows * (cached + tokens) * sizes.kv_bytes_per_token(size)


def test_weights_are_read_once_however_many_tokens():
    config = official("0.6B")[1]
    one, many = (total(operators(config, tokens, 0)) for tokens in (1, 512))
    assert many.weight_bytes - one.weight_bytes == 511 * 1024 * 2  # rows of the embedding
    assert one.floor_s(100) == (one.weight_bytes + one.kv_bytes) / 1e11
    assert one.intensity < 1.1 and many.intensity > 380


@pytest.mark.parametrize("model_type", ["qwen3", "qwen2", "llama"])
def test_shapes_and_bytes_are_those_of_a_model(model_type):
    raw = tiny_config(model_type, tie_word_embeddings=True)
    config = ModelConfig.from_dict(raw)
    weights = {name: mx.array(array) for name, array in tiny_weights(raw).items()}
    model = Qwen3(config, weights)
    hidden, fresh = model(mx.zeros((2, 7), mx.int32), KVView.empty(2))
    listed = operators(config, 7, 0, 2, weight_bytes=4, float_bytes=4)
    outputs = {o.name: o.output for o in listed}
    assert outputs["down_proj"] == hidden.shape
    assert outputs["k, v to the cache"][1:] == fresh[0][0].shape
    assert outputs["lm_head"] == model.head(hidden[:, -1:]).shape
    assert total(listed).kv_bytes == sum(a.nbytes for pair in fresh for a in pair)
    assert total(listed).weight_bytes == model.nbytes + 2 * 7 * config.hidden_size * 4
    named = [o.weight for o in listed if o.weight for _ in range(o.times)]
    assert sorted(named) == sorted([w.shape for n, w in weights.items() if not n.endswith(".bias")] + [named[0]])


def test_experts_and_windows_are_refused():
    moe = ModelConfig.from_dict(tiny_config("qwen3_moe"))
    windowed = ModelConfig.from_dict(tiny_config(use_sliding_window=True, sliding_window=4, max_window_layers=0))
    for config in (moe, windowed):
        fails(lambda: operators(config, 1, 0), "dense")


# The command


def run(*arguments: str, capsys) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main(["learn", "shapes", *arguments])
    out, err = capsys.readouterr()
    return stop.value.code or 0, out + err


def test_the_command_prints_the_table(capsys):
    code, out = run("--size", "qwen3-0.6b", "--tokens", "512", "--bandwidth", "100", capsys=capsys)
    assert code == 0
    rows = {line[:26].strip(): line[26:].split() for line in out.splitlines()}
    assert rows["gate_proj"] == "1 512 1024 3072 1024 1 512 3072 28 90,194.313 176.161".split()
    assert "481.41 GFLOP, 1.193 GB of weights, 0.059 GB of K/V: 384.55 FLOP a byte" in out
    assert "floor at 100.0 GB/s: 12.52 ms" in out


def test_the_command_without_a_bandwidth(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, out = run("--cached", "7", "--packing", "4bit", capsys=capsys)
    assert code == 0 and "tinymlx bench" in out


def test_the_command_reads_a_folder_without_its_weights(capsys, tmp_path):
    from tiny import write_checkpoint

    code, out = run("--model", str(write_checkpoint(tmp_path / "tiny")), "--packing", "f32", capsys=capsys)
    assert code == 0 and "131 64" in out


@pytest.mark.parametrize("wrong", [("--size", "0.7B"), ("--size", "30B-A3B"), ("--model", "x", "--size", "8B")])
def test_the_command_refuses(wrong, capsys):
    code, out = run(*wrong, capsys=capsys)
    assert code in (1, 2) and ("0.6b" in out or "exclude" in out)
