"""The model against mlx-lm in one process: both read the same folder, compute in float32, and must say the same.

mlx-lm is an independent reader of mlx-community checkpoints, so what is compared here and not with transformers is
quantisation: every width and group, modules with a packing of their own or none, experts, mxfp4.
"""

import contextlib
import io
import json

import mlx.core as mx
import numpy as np
import pytest
import tiny

from tinymlx.cache import KVView
from tinymlx.engine import SamplingParams, Session
from tinymlx.hub.checkpoint import open_checkpoint
from tinymlx.hub.source import resolve
from tinymlx.models.load import load_model

pytest.importorskip("transformers", reason="mlx-lm imports transformers; install the extra `test`")
mlx_lm_utils = pytest.importorskip("mlx_lm.utils", reason="compares with mlx-lm; install the extra `test`")

from mlx_lm.generate import generate_step  # noqa: E402
from test_golden import NoText  # noqa: E402

pytestmark = pytest.mark.capability("quantised models equal mlx-lm")

TOLERANCE = 1e-5 if mx.default_device() == mx.cpu else 1e-4  # of the largest logit
PROMPT_TOKENS, NEW_TOKENS = 33, 64
FAR_APART = 2e-4  # a lead in logits below which two right programs may choose differently; logits reach 10

YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
DENSE = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "gqa8_hd128": {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 128},
    "rope_parameters": {
        "rope_theta": tiny.Absent,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
        "num_hidden_layers": 3,
    },
    "yarn_type": {"rope_scaling": {"type": "yarn"} | YARN},
    "yarn_rope_type": {"rope_scaling": {"rope_type": "yarn", "beta_fast": 2.0, "beta_slow": 0.25} | YARN},
    "llama3": {
        "rope_scaling": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0} | YARN,
    },
    "moe": {"model_type": "qwen3_moe"},
    "moe_not_normalised": {"model_type": "qwen3_moe", "norm_topk_prob": False, "num_experts_per_tok": 3},
    "moe_dense_layers": {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 4,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    },
    "qwen2": {"model_type": "qwen2"},
    "qwen2_tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "llama": {"model_type": "llama"},
    "llama_biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 128},
}
# Sizes that groups of 128 divide.
QUANTIZABLE = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 199}
QUANTIZABLE_MOE = QUANTIZABLE | {"model_type": "qwen3_moe", "moe_intermediate_size": 128, "num_experts": 5}
PACKINGS = {
    f"affine_{bits}_bits_group_{group}": {"group_size": group, "bits": bits, "mode": "affine"}
    for bits in (2, 3, 4, 5, 6, 8)
    for group in (32, 64, 128)
} | {"mxfp4": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}
# Each width and each group once; the rest of the table with `-m full`.
SHORT = {"affine_2_bits_group_32", "affine_3_bits_group_64", "affine_4_bits_group_128", "affine_5_bits_group_32",
         "affine_6_bits_group_64", "affine_8_bits_group_128", "mxfp4"}  # fmt: skip
SHORT_EXPERTS = {"affine_3_bits_group_64", "affine_4_bits_group_128", "mxfp4"}


def packings(short):
    names = [pytest.param(name, marks=[] if name in short else pytest.mark.full) for name in PACKINGS]
    return pytest.mark.parametrize("packing", names)


def ours(folder):
    return load_model(open_checkpoint(resolve(str(folder))), dtype=mx.float32)


def theirs(folder):
    model, _ = mlx_lm_utils.load_model(folder)
    model.set_dtype(mx.float32)  # as ours: scales stored in float16 are widened, packed weights stay
    return model


def logits_of(model, tokens):
    """[L, V] float32 after each of `tokens`, of either implementation, without a cache."""
    tokens = mx.array([tokens])
    if hasattr(model, "weights"):
        hidden, _ = model(tokens, KVView.empty(1))
        return np.array(model.head(hidden)[0])
    return np.array(model(tokens)[0].astype(mx.float32))


def greedy_of_ours(model, prompt):
    session = Session(model, NoText(model.config.vocab_size), prefill_step_size=16)
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    return [chunk.token for chunk in session.stream(prompt, params) if chunk.token is not None]


def assert_same(folder):
    """64 greedy tokens and all logits on the way agree.

    Ours come from the engine's cached decoding; that each is the best by mlx-lm's logits after the ones before it makes
    the two greedy paths the same.
    """
    model, reference = ours(folder), theirs(folder)
    prompt = tiny.prompt(PROMPT_TOKENS, model.config.vocab_size)
    answer = greedy_of_ours(model, prompt)
    path = prompt + answer[:-1]
    got, want = logits_of(model, path), logits_of(reference, path)
    error = np.abs(got - want).max() / np.abs(want).max()
    assert error < TOLERANCE, f"{error:.1e} of the largest logit"
    draws = want[-NEW_TOKENS:]
    lead = np.diff(np.sort(draws, axis=-1)[:, -2:]).min()
    assert lead > FAR_APART, f"a lead of {lead} on this path hangs on rounding: take another seed"
    assert answer == draws.argmax(axis=-1).tolist()
    return model


@pytest.mark.parametrize("name", DENSE)
def test_unquantised(name, tmp_path):
    assert_same(tiny.write_checkpoint(tmp_path / "model", **DENSE[name]))


@pytest.mark.parametrize("model_type", ["qwen3", "qwen3_moe"])
def test_greedy_tokens_of_both_generators(model_type, tmp_path):
    folder = tiny.write_checkpoint(tmp_path / "model", model_type=model_type, shards=3)
    prompt = tiny.prompt(PROMPT_TOKENS, 131)
    steps = generate_step(mx.array(prompt), theirs(folder), max_tokens=NEW_TOKENS)
    assert greedy_of_ours(ours(folder), prompt) == [int(token) for token, _ in steps]


def test_tied_checkpoint_that_still_holds_a_head(tmp_path):
    """Some carry `lm_head.weight` all the same, even packed: it is dropped, with its scales and biases."""
    packing = {"group_size": 64, "bits": 4, "mode": "affine"}
    overrides = QUANTIZABLE | {"tie_word_embeddings": True}
    plain = tiny.write_quantized(tmp_path / "plain", packing, **overrides)
    extra = tiny.write_quantized(tmp_path / "extra", packing, **overrides)
    tensors = mx.load(str(extra / "model.safetensors"))
    head = mx.quantize(mx.array(tiny.uniform("head", (overrides["vocab_size"], 128), -1, 1)), group_size=64, bits=4)
    tensors |= dict(zip(("lm_head.weight", "lm_head.scales", "lm_head.biases"), head))
    mx.eval(tensors)  # the file is about to be replaced
    mx.save_safetensors(str(extra / "model.safetensors"), tensors)
    tokens = tiny.prompt(7, overrides["vocab_size"])
    want = logits_of(theirs(plain), tokens)
    assert np.abs(logits_of(ours(extra), tokens) - want).max() < TOLERANCE * np.abs(want).max()


@packings(SHORT)
def test_quantised(packing, tmp_path):
    assert_same(tiny.write_quantized(tmp_path / "model", PACKINGS[packing], **QUANTIZABLE))


@packings(SHORT_EXPERTS)
def test_quantised_experts(packing, tmp_path):
    assert_same(tiny.write_quantized(tmp_path / "model", PACKINGS[packing], **QUANTIZABLE_MOE))


@pytest.mark.parametrize("scales", ["float16", "bfloat16"])
def test_scales_are_widened_not_rounded(scales, tmp_path):
    """Checkpoints store scales in 16 bits; a float32 model computes with exactly these."""
    packing = {"group_size": 32, "bits": 4, "mode": "affine"}
    assert_same(tiny.write_quantized(tmp_path / "model", packing, scales=scales, **QUANTIZABLE))


def test_modules_with_a_packing_of_their_own(tmp_path):
    own = {
        "model.embed_tokens": {"group_size": 32, "bits": 8, "mode": "affine"},
        "model.layers.0.self_attn.o_proj": {"group_size": 128, "bits": 6},  # older files leave the mode out
        "model.layers.1.mlp.down_proj": {"group_size": 64, "bits": 3, "mode": "affine"},
        "model.layers.1.self_attn.q_proj": False,
        "lm_head": False,
    }
    packing = {"group_size": 64, "bits": 4, "mode": "affine"} | own
    model = assert_same(tiny.write_quantized(tmp_path / "model", packing, **QUANTIZABLE))
    assert "lm_head" not in model.quantization and "model.layers.1.self_attn.q_proj" not in model.quantization
    assert model.quantization["model.layers.0.self_attn.o_proj"].bits == 6


def test_mode_of_one_module_differs(tmp_path):
    packing = {"group_size": 32, "bits": 4, "mode": "mxfp4"}
    packing |= {name: {"group_size": 64, "bits": 8, "mode": "affine"} for name in ("model.embed_tokens", "lm_head")}
    assert_same(tiny.write_quantized(tmp_path / "model", packing, **QUANTIZABLE))


def test_tied_embedding_serves_as_a_packed_head(tmp_path):
    packing = {"group_size": 64, "bits": 6, "mode": "affine"}
    assert_same(tiny.write_quantized(tmp_path / "model", packing, tie_word_embeddings=True, **QUANTIZABLE))


@pytest.mark.parametrize("mode", ["affine", pytest.param("mxfp4", marks=pytest.mark.full)])
@pytest.mark.parametrize("model_type", ["qwen3", "qwen3_moe"])
def test_folder_that_mlx_lm_quantised(model_type, mode, tmp_path):
    """Whatever `mlx_lm.convert` writes: the router of a mixture in 8 bits of its own, an index beside one file."""
    overrides = QUANTIZABLE if model_type == "qwen3" else QUANTIZABLE_MOE
    source = tiny.write_checkpoint(tmp_path / "source", **overrides)
    model, config = mlx_lm_utils.load_model(source)
    with contextlib.redirect_stdout(io.StringIO()):
        model, config = mlx_lm_utils.quantize_model(model, config, None, 4, mode=mode)
    folder = tmp_path / "quantised"
    mlx_lm_utils.save_model(folder, model)
    mlx_lm_utils.save_config(config, folder / "config.json")
    assert "quantization" in json.loads((folder / "config.json").read_text())
    assert_same(folder)
