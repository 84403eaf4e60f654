"""The official Qwen3 models: their shapes, and from those the bytes they take and the pace a bandwidth allows.

Shapes are those of the config.json files under huggingface.co/Qwen (Qwen3 Technical Report, arXiv:2505.09388, tables 1
and 2).
"""

from typing import NamedTuple

VOCAB, HEAD_DIM = 151936, 128
CONTEXT = 40960  # max_position_embeddings of all of them
GROUP = 64  # weights that share a scale and a bias in mlx-community's quantised checkpoints


class Size(NamedTuple):
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    """Of one expert where there are experts."""
    tied: bool
    """Whether the embedding is the output projection too."""
    experts: int = 0
    chosen_experts: int = 0


SIZES = (
    Size("Qwen3-0.6B", 28, 1024, 16, 8, 3072, True),
    Size("Qwen3-1.7B", 28, 2048, 16, 8, 6144, True),
    Size("Qwen3-4B", 36, 2560, 32, 8, 9728, True),
    Size("Qwen3-8B", 36, 4096, 32, 8, 12288, False),
    Size("Qwen3-14B", 40, 5120, 40, 8, 17408, False),
    Size("Qwen3-32B", 64, 5120, 64, 8, 25600, False),
    Size("Qwen3-30B-A3B", 48, 2048, 32, 4, 768, False, experts=128, chosen_experts=8),
)

PACKINGS = {"4bit": 4, "8bit": 8, "bf16": None}  # suffix of mlx-community's repository -> bits of a packed weight


def repository(size: Size, packing: str) -> str:
    """("Qwen3-4B", "4bit") -> "mlx-community/Qwen3-4B-4bit"."""
    return f"mlx-community/{size.name}-{packing}"


def matmul_weights(size: Size, experts: int) -> int:
    """Weights in matrices, embedding left out and output projection included, with `experts` experts a layer."""
    attention = size.hidden * HEAD_DIM * (2 * size.heads + 2 * size.kv_heads)
    router = size.hidden * size.experts
    mlp = 3 * size.hidden * size.intermediate * (experts or 1)
    return size.layers * (attention + router + mlp) + VOCAB * size.hidden


def bytes_per_weight(packing: str, float_bytes: int = 2) -> float:
    """4 bits, and a scale and a bias for every 64 weights: 0.5625 bytes with scales of 2 bytes."""
    bits = PACKINGS[packing]
    return float_bytes if bits is None else bits / 8 + 2 * float_bytes / GROUP


def weight_bytes(size: Size, packing: str, float_bytes: int = 2) -> int:
    """Bytes in memory. float_bytes: of a scale or an unquantised weight; 4 on a CPU, where tinymlx computes in
    float32.
    """
    weights = matmul_weights(size, size.experts) + (0 if size.tied else VOCAB * size.hidden)
    norms = size.layers * 2 * (size.hidden + HEAD_DIM) + size.hidden
    return round(weights * bytes_per_weight(packing, float_bytes) + norms * float_bytes)


def bytes_per_token(size: Size, packing: str, float_bytes: int = 2) -> int:
    """Bytes of weights that decoding one token reads: of experts only the chosen, of an untied embedding nothing to
    speak of.
    """
    return round(matmul_weights(size, size.chosen_experts) * bytes_per_weight(packing, float_bytes))


def kv_bytes_per_token(size: Size, float_bytes: int = 2) -> int:
    """Bytes of keys and values of one token in all layers."""
    return 2 * size.layers * size.kv_heads * HEAD_DIM * float_bytes


def flops_per_token(size: Size, context: int) -> int:
    """Multiplications and additions for one token that attends to `context` tokens."""
    return 2 * matmul_weights(size, size.chosen_experts) + 4 * context * size.heads * HEAD_DIM * size.layers


def plan_request(size: Size, packing: str, backend: str) -> dict:
    """Arguments of `plan.plan` but the context."""
    float_bytes = 4 if backend == "cpu" else 2
    return dict(
        weight_bytes=weight_bytes(size, packing, float_bytes),
        num_layers=size.layers,
        kv_heads=size.kv_heads,
        head_dim=HEAD_DIM,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate * (size.chosen_experts or 1),
        vocab_size=VOCAB,
        kv_dtype_bytes=float_bytes,
        activation_dtype_bytes=float_bytes,
        num_heads=size.heads,
        quantized=PACKINGS[packing] is not None,
        backend=backend,
    )


class Pace(NamedTuple):
    """Where decoding falls short of bandwidth: a matvec reads slower than a plain read, and every layer costs time
    whatever its size.
    """

    shares: dict[str, float]
    """Packing -> share of the memory bandwidth at which a large matvec reads weights."""
    layer_s: float
    expert_layer_s: float


# Metal: fitted to other people's mlx-lm and course figures on M4 Pro, M4 Max and M3 Ultra, which it meets within
# 35 %; nothing was run on a Mac by us. CUDA: our runs of mlx-lm on an H200, within a third. CPU: our runs of MLX
# 0.32.4 on two x86 cores, where packed weights are unpacked in one thread without vector instructions.
PACES = {
    "metal": Pace({"4bit": 0.8, "8bit": 0.8, "bf16": 0.8}, 50e-6, 100e-6),
    "cuda": Pace({"4bit": 0.2, "8bit": 0.35, "bf16": 0.73}, 120e-6, 200e-6),
    "cpu": Pace({"4bit": 0.04, "8bit": 0.07, "bf16": 0.4}, 200e-6, 400e-6),
}


def most_tokens_per_s(read_bytes: float, gb_s: float) -> float:
    """Nothing decodes faster than it reads its weights once a token."""
    return gb_s * 1e9 / read_bytes


def likely_tokens_per_s(
    size: Size, packing: str, read_bytes: int, gb_s: float, backend: str, matvec_gb_s: float | None = None
) -> float:
    """A guess by PACES, or by the rate at which `tinymlx bench` saw a matvec of this packing read here, at a short
    context.
    """
    pace = PACES[backend]
    rate = matvec_gb_s or gb_s * pace.shares[packing]
    layer_s = pace.expert_layer_s if size.experts else pace.layer_s
    return 1 / (read_bytes / (rate * 1e9) + size.layers * layer_s)
