"""Counts the embedding and the output projection: a token looks up one row of the former.

caught by: TestTask4Bytes::test_a_dense_model
"""

from tinymlx.memory.sizes import GROUP, HEAD_DIM, PACKINGS, VOCAB, Size, matmul_weights


def bytes_per_weight(packing: str, float_bytes: int = 2) -> float:
    bits = PACKINGS[packing]
    return float_bytes if bits is None else bits / 8 + 2 * float_bytes / GROUP


def bytes_per_token(size: Size, packing: str, float_bytes: int = 2) -> int:
    weights = matmul_weights(size, size.chosen_experts) + VOCAB * size.hidden
    return round(weights * bytes_per_weight(packing, float_bytes))


def kv_bytes_per_token(size: Size, float_bytes: int = 2) -> int:
    return 2 * size.layers * size.kv_heads * HEAD_DIM * float_bytes
