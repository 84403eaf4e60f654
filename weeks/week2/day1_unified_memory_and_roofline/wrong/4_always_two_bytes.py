"""Takes scales for two bytes each: in float32 they are four.

caught by: TestTask4Bytes::test_a_weight_takes_what_mlx_keeps_of_it
"""

from tinymlx.memory.sizes import GROUP, HEAD_DIM, PACKINGS, Size, matmul_weights


def bytes_per_weight(packing: str, float_bytes: int = 2) -> float:
    bits = PACKINGS[packing]
    return float_bytes if bits is None else bits / 8 + 4 / GROUP


def bytes_per_token(size: Size, packing: str, float_bytes: int = 2) -> int:
    return round(matmul_weights(size, size.chosen_experts) * bytes_per_weight(packing, float_bytes))


def kv_bytes_per_token(size: Size, float_bytes: int = 2) -> int:
    return 2 * size.layers * size.kv_heads * HEAD_DIM * float_bytes
