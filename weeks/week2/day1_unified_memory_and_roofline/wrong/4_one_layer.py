"""One layer's cache.

caught by: TestTask4Bytes::test_keys_and_values
"""

from tinymlx.memory.sizes import GROUP, HEAD_DIM, PACKINGS, Size, matmul_weights


def bytes_per_weight(packing: str, float_bytes: int = 2) -> float:
    bits = PACKINGS[packing]
    return float_bytes if bits is None else bits / 8 + 2 * float_bytes / GROUP


def bytes_per_token(size: Size, packing: str, float_bytes: int = 2) -> int:
    return round(matmul_weights(size, size.chosen_experts) * bytes_per_weight(packing, float_bytes))


def kv_bytes_per_token(size: Size, float_bytes: int = 2) -> int:
    return 2 * size.kv_heads * HEAD_DIM * float_bytes
