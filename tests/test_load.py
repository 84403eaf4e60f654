"""From tensors to a model: what does not fit is named, and adapters do what mlx-lm's do."""

import json

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny import write_checkpoint

from tinymlx.cache import KVView
from tinymlx.errors import UserError
from tinymlx.hub import resolve
from tinymlx.hub.checkpoint import open_checkpoint
from tinymlx.models.load import load_model, memory_request

pytestmark = pytest.mark.capability("weights and adapters checked")


def load(folder, **options):
    return load_model(open_checkpoint(resolve(str(folder))), dtype=mx.float32, **options)


def rewrite(folder, change):
    """Apply `change` to the dict of tensors of a tiny checkpoint."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


@pytest.fixture
def folder(tmp_path):
    write_checkpoint(tmp_path)
    return tmp_path


NORM, DOWN = "model.norm.weight", "model.layers.1.mlp.down_proj.weight"
DAMAGE = {
    "missing": (lambda t: t.pop(NORM), NORM, "missing"),
    "missing linear": (lambda t: t.pop(DOWN), DOWN, "missing"),
    "extra": (
        lambda t: t.update({"model.layers.7.mlp.down_proj.weight": t[DOWN]}),
        "model.layers.7.mlp.down_proj.weight",
        "belong",
    ),
    "bias that the config does not have": (lambda t: t.update({"lm_head.bias": t[NORM]}), "lm_head.bias", "belong"),
    "shape": (lambda t: t.update({DOWN: t[DOWN].T.copy()}), DOWN, "shape"),
    "integers": (lambda t: t.update({NORM: t[NORM].astype(np.int32)}), NORM, "I32"),
    "nan": (lambda t: t[DOWN].__setitem__((3, 5), np.nan), DOWN, "NaN"),
    "infinity": (lambda t: t[NORM].__setitem__(2, -np.inf), NORM, "infinity"),
    "scales without quantization": (lambda t: t.update({"lm_head.scales": t[NORM]}), "lm_head.scales", "not quantised"),
}


@pytest.mark.parametrize("change, tensor, what", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named_in_one_line(folder, change, tensor, what):
    rewrite(folder, change)
    with pytest.raises(UserError) as error:
        load(folder)
    message = str(error.value)
    assert tensor in message and what in message and str(folder) in message and "\n" not in message


def test_every_lm_head_tensor_of_a_tied_model_is_dropped(tmp_path):
    write_checkpoint(tmp_path, tie_word_embeddings=True)
    rewrite(
        tmp_path,
        lambda t: t.update({f"lm_head.{part}": np.zeros(3, np.float32) for part in ("weight", "scales", "biases")}),
    )
    model = load(tmp_path)
    assert not any(name.startswith("lm_head") for name in model.weights)
    assert model.lm_head is model.embed_tokens


def test_missing_expert_is_named(tmp_path):
    write_checkpoint(tmp_path, model_type="qwen3_moe")
    rewrite(tmp_path, lambda t: t.pop("model.layers.0.mlp.experts.3.up_proj.weight"))
    with pytest.raises(UserError, match="expert 3 of .*up_proj"):
        load(tmp_path)


@pytest.mark.parametrize(
    "override", [{"bits": 4.0}, {"group_size": 32.0}, {"bits": 7}, {"group_size": 48}, {"mode": "nvfp9"}, {"bits": "4"}]
)
def test_unknown_packing_is_named(folder, override):
    def pack(tensors):
        weight, scales, biases = mx.quantize(mx.array(tensors["lm_head.weight"]), group_size=64, bits=4)
        tensors |= {
            "lm_head.weight": np.array(weight),
            "lm_head.scales": np.array(scales),
            "lm_head.biases": np.array(biases),
        }

    rewrite(folder, pack)
    config = json.loads((folder / "config.json").read_text())
    config["quantization"] = {"group_size": 64, "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    assert load(folder).quantization["lm_head"].bits == 4
    config["quantization"]["lm_head"] = {"bits": 4}  # the rest has its default
    assert load(folder).quantization["lm_head"] == (64, 4, "affine")
    config["quantization"]["lm_head"] = override
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="lm_head is packed as"):
        load(folder)


def test_progress_reaches_the_total(folder):
    calls = []
    load(folder, progress=lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls) and calls[-1][0] == calls[-1][1] == sum(
        f.nbytes for f in load_file(folder / "model.safetensors").values()
    )


def test_end_tokens_are_those_of_both_configs(folder):
    for name, ids in (("config.json", 7), ("generation_config.json", [3, 5])):
        file = folder / name
        file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | {"eos_token_id": ids}))
    assert load(folder).config.eos_token_ids == (3, 5, 7)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": "<end>"}))
    with pytest.raises(UserError, match="generation_config.json: eos_token_id"):
        load(folder)


def test_a_scale_of_mxfp4_that_is_no_number_is_named(folder):
    def pack(tensors):
        weight, scales = mx.quantize(mx.array(tensors["lm_head.weight"]), group_size=32, bits=4, mode="mxfp4")
        scales = np.array(scales)
        scales[3, 1] = 255
        tensors |= {"lm_head.weight": np.array(weight), "lm_head.scales": scales}

    rewrite(folder, pack)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}})
    )
    with pytest.raises(UserError, match="lm_head.scales has a scale that is NaN"):
        load(folder)


@pytest.mark.parametrize("model_type, kind", [("qwen3", "lora"), ("qwen3", "dora"), ("qwen3_moe", "lora")])
def test_adapter_as_mlx_lm_writes_and_applies_it(tmp_path, model_type, kind):
    utils = pytest.importorskip("mlx_lm.utils")
    from mlx.utils import tree_flatten
    from mlx_lm.tuner.utils import linear_to_lora_layers

    write_checkpoint(tmp_path / "model", model_type=model_type)
    reference, _ = utils.load_model(tmp_path / "model")
    reference.freeze()
    parameters = {"rank": 4, "scale": 3.0, "dropout": 0.0}
    linear_to_lora_layers(reference, 2, parameters, use_dora=kind == "dora")
    mx.random.seed(0)
    reference.update(_random_b(reference.trainable_parameters()))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    mx.save_safetensors(str(adapter / "adapters.safetensors"), dict(tree_flatten(reference.trainable_parameters())))
    settings = {"fine_tune_type": kind, "num_layers": 2, "lora_parameters": parameters}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    tokens = mx.array([[5, 9, 100, 2, 33, 7, 1, 0]])
    ours = load(tmp_path / "model", adapter_path=adapter)
    got, want = ours.head(ours(tokens, KVView.empty(1))[0]), reference(tokens)
    assert mx.abs(got - want).max().item() < 1e-5 * mx.abs(want).max().item()
    plain = load(tmp_path / "model")
    assert mx.abs(plain.head(plain(tokens, KVView.empty(1))[0]) - want).max().item() > 0.1


def _random_b(tree):
    """mlx-lm starts with b = 0, which changes nothing."""
    from mlx.utils import tree_map_with_path

    return tree_map_with_path(lambda path, x: mx.random.normal(x.shape) * 0.3 if path.endswith("lora_b") else x, tree)


def write_adapter(folder, kind="lora", change=lambda tensors: None, **settings):
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    tensors = {}
    for module, N, K in (("model.layers.0.self_attn.q_proj", 256, 64), ("model.layers.1.mlp.down_proj", 64, 88)):
        tensors[f"{module}.lora_a"] = random.standard_normal((K, 4)).astype(np.float32) * 0.2
        tensors[f"{module}.lora_b"] = random.standard_normal((4, N)).astype(np.float32) * 0.2
        if kind == "dora":
            tensors[f"{module}.m"] = 0.5 + random.random(N).astype(np.float32)
    change(tensors)
    save_file(tensors, folder / "adapters.safetensors")
    keys = ["self_attn.q_proj", "mlp.down_proj"]
    config = {
        "fine_tune_type": kind,
        "num_layers": 2,
        "lora_parameters": {"rank": 4, "scale": 3.0, "dropout": 0.0, "keys": keys},
    }
    (folder / "adapter_config.json").write_text(json.dumps(config | settings))
    return folder


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_adapter_equals_the_changed_weights(folder, tmp_path_factory, kind):
    adapter = write_adapter(tmp_path_factory.mktemp("adapter"), kind)
    tokens = mx.array([[5, 9, 100, 2, 33, 7, 1, 0]])
    plain, adapted = load(folder), load(folder, adapter_path=adapter)
    got = adapted.head(adapted(tokens, KVView.empty(1))[0])

    changes = load_file(adapter / "adapters.safetensors")

    def merge(tensors):
        for module in {name.rpartition(".")[0] for name in changes}:
            w = tensors[f"{module}.weight"] + 3.0 * (changes[f"{module}.lora_a"] @ changes[f"{module}.lora_b"]).T
            if kind == "dora":
                w = w / np.linalg.norm(w, axis=1, keepdims=True) * changes[f"{module}.m"][:, None]
            tensors[f"{module}.weight"] = w

    rewrite(folder, merge)
    merged = load(folder)
    want = merged.head(merged(tokens, KVView.empty(1))[0])
    assert mx.abs(got - want).max().item() < 1e-4 * mx.abs(want).max().item()
    base = plain.head(plain(tokens, KVView.empty(1))[0])
    assert mx.abs(base - want).max().item() > 0.1


ADAPTER_DAMAGE = {
    "shape": (
        dict(change=lambda t: t.update({"model.layers.0.self_attn.q_proj.lora_b": np.zeros((4, 7), np.float32)})),
        "q_proj",
    ),
    "half": (dict(change=lambda t: t.pop("model.layers.0.self_attn.q_proj.lora_b")), "q_proj"),
    "other model": (
        dict(change=lambda t: t.update({"model.layers.9.mlp.up_proj.lora_a": np.zeros((4, 7), np.float32)})),
        "layers.9",
    ),
    "nan": (dict(change=lambda t: t["model.layers.0.self_attn.q_proj.lora_a"].fill(np.nan)), "NaN"),
    "kind": (dict(fine_tune_type="full"), "full"),
    "scale": (dict(lora_parameters={"scale": "much"}), "scale"),
    "scale beyond floats": (dict(lora_parameters={"scale": 10**400}), "scale"),
    "empty": (dict(change=lambda t: t.clear()), "no tensor"),
    "embedding": (
        dict(change=lambda t: t.update({"model.embed_tokens.lora_a": np.zeros((131, 2), np.float32)})),
        "embedding",
    ),
    "magnitude": (
        dict(kind="dora", change=lambda t: t.pop("model.layers.0.self_attn.q_proj.m")),
        "q_proj has lora_a, lora_b",
    ),
    "other magnitude": (
        dict(kind="dora", change=lambda t: t.update({"model.layers.0.self_attn.q_proj.m": np.ones(3, np.float32)})),
        "[256]",
    ),
    "extra": (dict(change=lambda t: t.update({"model.layers.0.self_attn.q_proj.x": np.ones(3, np.float32)})), "q_proj"),
}


@pytest.mark.parametrize("damage, named", ADAPTER_DAMAGE.values(), ids=ADAPTER_DAMAGE)
def test_adapter_damage_is_named(folder, tmp_path_factory, damage, named):
    adapter = write_adapter(tmp_path_factory.mktemp("adapter"), **damage)
    with pytest.raises(UserError) as error:
        load(folder, adapter_path=adapter)
    assert named in str(error.value) and str(adapter) in str(error.value) and "\n" not in str(error.value)


def test_missing_adapter_is_named(folder, tmp_path_factory):
    with pytest.raises(UserError, match="adapter_config.json is missing"):
        load(folder, adapter_path=tmp_path_factory.mktemp("empty"))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
@pytest.mark.parametrize("stored", [np.float16, np.float32])
def test_scales_are_widened_and_never_narrowed(folder, dtype, stored):
    """GGUF scales are float16, and float32 where they overflow; bfloat16 would cost up to 1.2 %."""

    def pack(tensors):
        weight, scales, biases = mx.quantize(mx.array(tensors["lm_head.weight"]), group_size=64, bits=4)
        scales, biases = np.array(scales).astype(stored), np.array(biases).astype(stored)
        tensors |= {"lm_head.weight": np.array(weight), "lm_head.scales": scales, "lm_head.biases": biases}

    rewrite(folder, pack)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization": {"group_size": 64, "bits": 4}}))
    checkpoint = open_checkpoint(resolve(str(folder)))
    model = load_model(checkpoint, dtype=dtype)
    kept = mx.float32 if mx.float32 == dtype or stored == np.float32 else mx.float16
    assert model.weights["lm_head.scales"].dtype == model.weights["lm_head.biases"].dtype == kept
    assert memory_request(checkpoint, model.config, dtype)["weight_bytes"] == model.nbytes
    hidden, _ = model(mx.array([[1, 2, 3]]), KVView.empty(1))
    assert model.head(hidden).dtype == hidden.dtype == dtype
