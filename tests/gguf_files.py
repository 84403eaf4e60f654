"""GGUF files byte by byte, so that tests can write what no proper writer would: wrong counts, types, offsets, names."""

import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, BF16 = (
    0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 30,
)  # fmt: skip
BLOCKS = {  # elements, bytes
    F32: (1, 4), F16: (1, 2), BF16: (1, 2), Q4_0: (32, 18), Q4_1: (32, 20), Q5_0: (32, 22), Q5_1: (32, 24), Q8_0: (32, 34), Q2_K: (256, 84),
    Q3_K: (256, 110), Q4_K: (256, 144), Q5_K: (256, 176), Q6_K: (256, 210), IQ4_NL: (32, 18), IQ4_XS: (256, 136),
}  # fmt: skip
SCALES_AT = {
    Q4_1: (0, 2),
    Q5_1: (0, 2),
    Q4_K: (0, 2),
    Q5_K: (0, 2),
    Q2_K: (80, 82),
    Q3_K: (108,),
    Q6_K: (208,),
}  # elsewhere at byte 0


class Tensor(NamedTuple):
    name: str
    type: int
    shape: tuple[int, ...]  # row-major
    data: bytes


class Raw(NamedTuple):
    """A metadata value written as it is."""

    kind: int
    data: bytes


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(item: Any) -> bytes:
    """Type and value: int -> uint32, float -> float32, lists by their first element."""
    if isinstance(item, Raw):
        return struct.pack("<I", item.kind) + item.data
    if isinstance(item, bool):
        return struct.pack("<IB", 7, item)
    if isinstance(item, int):
        return struct.pack("<II", 4, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if isinstance(item, str):
        return struct.pack("<I", 8) + string(item)
    if isinstance(item[0], str):
        return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(string, item))
    kind, dtype = (6, "<f4") if isinstance(item[0], float) else (5, "<i4")
    return struct.pack("<IIQ", 9, kind, len(item)) + np.asarray(item, dtype).tobytes()


def header(
    pairs: Iterable[tuple[str, Any]], tensors: Iterable[tuple[str, int, tuple[int, ...], int]], **counts
) -> bytes:
    """All before the padding. tensors: (name, type, row-major shape, offset); counts override what is counted."""
    pairs, tensors = list(pairs), list(tensors)
    out = [
        counts.get("magic", b"GGUF"),
        struct.pack("<I", counts.get("version", 3)),
        struct.pack("<QQ", counts.get("num_tensors", len(tensors)), counts.get("num_pairs", len(pairs))),
    ]
    out += [string(key) + value(item) for key, item in pairs]
    for name, kind, shape, offset in tensors:
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        out.append(string(name) + dims + struct.pack("<IQ", kind, offset))
    return b"".join(out)


def gguf(metadata: Mapping[str, Any], tensors: Iterable[Tensor], alignment: int = 32) -> bytes:
    """A whole, well-formed file."""
    rows, data = [], b""
    for tensor in tensors:
        data += b"\0" * (-len(data) % alignment)
        rows.append((tensor.name, tensor.type, tensor.shape, len(data)))
        data += tensor.data
    head = header(metadata.items(), rows)
    return head + b"\0" * (-len(head) % alignment) + data


def random_tensor(name: str, kind: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Random numbers of a type; for quantised ones random codes and float16 scales from subnormal to some thousands."""
    rng = np.random.default_rng([seed, *name.encode()])
    block, nbytes = BLOCKS[kind]
    count = int(np.prod(shape)) // block
    if block == 1:
        dtype = {F32: np.float32, F16: np.float16}.get(kind)
        floats = rng.standard_normal(count).astype(np.float32)
        data = floats.astype(dtype).tobytes() if dtype else (floats.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        return Tensor(name, kind, shape, data)
    blocks = rng.integers(0, 256, (count, nbytes), np.uint8)
    for at in SCALES_AT.get(kind, (0,)):
        exponents = rng.uniform(-24, 8, (count, 1))
        scales = (rng.choice([-1.0, 1.0], (count, 1)) * 2.0**exponents).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    return Tensor(name, kind, shape, blocks.tobytes())


HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP, VOCAB = 64, 4, 2, 16, 96, 40


def model_metadata(architecture: str = "qwen3", layers: int = 1, **changes: Any) -> dict[str, Any]:
    """Metadata of a tiny model; `changes` replace keys ("." as "__"), None removes one."""
    a = architecture
    metadata = {
        "general.architecture": a,
        f"{a}.block_count": layers,
        f"{a}.context_length": 512,
        f"{a}.embedding_length": HIDDEN,
        f"{a}.feed_forward_length": MLP,
        f"{a}.attention.head_count": HEADS,
        f"{a}.attention.head_count_kv": KV_HEADS,
        f"{a}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{a}.rope.freq_base": 1000000.0,
    }
    for key, item in changes.items():
        metadata[f"{a}.{key.replace('__', '.')}"] = item
    return {key: item for key, item in metadata.items() if item is not None}


def model_tensors(architecture: str = "qwen3", layers: int = 1, kind: int = F32, tied: bool = True) -> list[Tensor]:
    """Random tensors of that model: matrices of type `kind`, norms F32."""
    matrices = {"token_embd.weight": (VOCAB, HIDDEN)}
    vectors = {"output_norm.weight": (HIDDEN,)}
    if not tied:
        matrices["output.weight"] = (VOCAB, HIDDEN)
    for layer in range(layers):
        b = f"blk.{layer}."
        matrices |= {
            b + "attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
            b + "attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            b + "attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            b + "attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
        }
        vectors |= {b + "attn_norm.weight": (HIDDEN,), b + "ffn_norm.weight": (HIDDEN,)}
        if architecture in ("qwen3", "qwen3moe"):
            vectors |= {b + "attn_q_norm.weight": (HEAD_DIM,), b + "attn_k_norm.weight": (HEAD_DIM,)}
        if architecture == "qwen2":
            rows = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
            vectors |= {f"{b}attn_{x}.bias": (heads * HEAD_DIM,) for x, heads in rows.items()}
        if architecture == "qwen3moe":
            vectors |= {b + "ffn_gate_inp.weight": (4, HIDDEN)}
            matrices |= {b + "ffn_gate_exps.weight": (4, 32, HIDDEN), b + "ffn_up_exps.weight": (4, 32, HIDDEN)}
            matrices |= {b + "ffn_down_exps.weight": (4, HIDDEN, 32)}
        else:
            matrices |= {b + "ffn_gate.weight": (MLP, HIDDEN), b + "ffn_up.weight": (MLP, HIDDEN)}
            matrices |= {b + "ffn_down.weight": (HIDDEN, MLP)}
    tensors = [random_tensor(name, kind, shape) for name, shape in matrices.items()]
    return tensors + [random_tensor(name, F32, shape) for name, shape in vectors.items()]
