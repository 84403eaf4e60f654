"""What a block of a quantised GGUF type holds, as MLX's codes, scales and biases, or as plain numbers.

MLX computes `w = scale * code + bias` per group of 32. These are the same numbers, with d, m, dmin float16 and s, t 6-bit:

    Q4_0   w = d * (q - 8)       ->  scale d,      bias -8 d,      code q        (4 bits)
    Q4_1   w = d * q + m         ->  scale d,      bias m,         code q        (4 bits)
    Q5_0   w = d * (q - 16)      ->  scale d,      bias -16 d,     code q        (5 bits)
    Q5_1   w = d * q + m         ->  scale d,      bias m,         code q        (5 bits)
    Q8_0   w = d * q, q signed   ->  scale d,      bias -128 d,    code q + 128  (8 bits)
    Q4_K   w = d s * q - dmin t  ->  scale d s,    bias -dmin t,   code q        (4 bits, eight groups a block)
    Q5_K   the same              ->                                              (5 bits)

A float16 times a power of two only moves its exponent; where that would overflow, and for d s and dmin t, which need 17 bits, scales and biases
are float32. Types with groups of 16 or with a table of values have no such form: the `gguf` package makes plain float32 numbers of them.

Sources: ggml's quantize_row_*_ref and get_scale_min_k4 (ggml-quants.c) for the blocks; `mlx.core.dequantize` for the codes.
"""

import numpy as np

from tinymlx.errors import UserError

GROUP_SIZE = 32
BITS = {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "Q4_K": 4, "Q5_K": 5}
"""Types that are MLX affine triplets, and their bits."""
WIDE = ("Q4_K", "Q5_K")
"""Those whose scales are always float32."""
PLAIN = ("Q2_K", "Q3_K", "Q6_K", "IQ4_NL", "IQ4_XS")
"""Types that become float32 numbers."""

_CENTRES = {"Q4_0": -8.0, "Q5_0": -16.0, "Q8_0": -128.0}
_CHUNK = 8192  # blocks worked on at a time: what fits a core's cache


def words(blocks: np.ndarray, kind: str) -> np.ndarray:
    """The codes in MLX's order, code i of a group in its bits b i and on. [..., blocks, bytes] -> uint32 [..., words]."""
    flat = np.ascontiguousarray(blocks).reshape(-1, blocks.shape[-1])
    packed = np.concatenate(
        [_pack(_codes(flat[i : i + _CHUNK], kind), BITS[kind]) for i in range(0, len(flat), _CHUNK)]
    )
    return packed.reshape(*blocks.shape[:-2], -1).view("<u4")


def _codes(flat: np.ndarray, kind: str) -> np.ndarray:
    """[n, bytes] -> uint8 codes [n * groups a block, 32]."""
    if kind == "Q8_0":
        return flat[:, 2:] ^ np.uint8(0x80)  # signed q as q + 128
    if kind in WIDE:
        low = flat[:, -128:].reshape(
            -1, 4, 32
        )  # byte j of row i: element j of group 2 i, and in its high half of group 2 i + 1
        codes = np.stack([low & 0x0F, low >> 4], axis=2)
        if kind == "Q5_K":
            fifth = flat[:, 16:48, None] >> np.arange(8, dtype=np.uint8) & 1  # bit g of byte j: element j of group g
            codes |= (fifth.swapaxes(1, 2) << 4).reshape(codes.shape)
        return codes.reshape(-1, 32)
    low = flat[:, -16:]  # byte j: element j, and in its high half element j + 16
    codes = np.concatenate([low & 0x0F, low >> 4], axis=1)
    if BITS[kind] == 5:
        fifth = np.ascontiguousarray(flat[:, -20:-16]).view("<u4") >> np.arange(32, dtype=np.uint32) & 1
        codes |= (fifth << 4).astype(np.uint8)
    return codes


def _pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """[n, 32] -> bytes [n, 4 * bits], bit after bit, the lowest first."""
    if bits == 8:
        return codes
    if bits == 4:
        return codes[:, 0::2] | codes[:, 1::2] << 4
    eights = codes.reshape(-1, 8).astype(np.uint64)
    joined = np.bitwise_or.reduce(eights << (bits * np.arange(8, dtype=np.uint64)), axis=1)
    return np.ascontiguousarray(joined.astype("<u8")[:, None]).view(np.uint8)[:, :bits].reshape(len(codes), -1)


def scales_and_biases(blocks: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """[..., blocks, bytes] -> two [..., groups], float16 if both fit, else float32. Raises UserError if one is NaN or infinite."""
    d = _half(blocks, 0)
    if kind in WIDE:
        s, t = _six_bits(blocks[..., 4:16])
        shape = (*blocks.shape[:-2], -1)
        scales = (d.astype(np.float32)[..., None] * s).reshape(shape)
        biases = (-_half(blocks, 2).astype(np.float32)[..., None] * t).reshape(shape)
    elif kind in _CENTRES:
        # float32: so that the product exists before it is known whether it fits float16
        scales, biases = d, d.astype(np.float32) * np.float32(_CENTRES[kind])
    else:
        scales, biases = d, _half(blocks, 2)
    largest = np.maximum(np.abs(scales).max(), np.abs(biases).max())
    if not np.isfinite(largest):  # NaN, too: numpy's max and maximum keep it
        raise UserError("has a NaN or infinite scale; download the file again")
    dtype = np.float32 if kind in WIDE or largest > np.finfo(np.float16).max else np.float16
    return scales.astype(dtype), biases.astype(dtype)


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of each block: [..., blocks, bytes] -> [..., blocks]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0]


def _six_bits(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight 6-bit scales and eight 6-bit minima from 12 bytes: [..., 12] -> two [..., 8].

    Bytes 0-3 and 4-7 hold the first four of each in their low six bits; their upper two bits are those of the last four,
    whose low four bits are the halves of bytes 8-11.
    """
    first, second, last = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, (last & 15) | (first >> 6) << 4], axis=-1)
    minima = np.concatenate([second & 63, (last >> 4) | (second >> 6) << 4], axis=-1)
    return scales, minima


def needs_package(kind: str) -> str:
    """What to say of a tensor whose type is in PLAIN where the `gguf` package is missing."""
    return f"is {kind}, which needs the package gguf: python -m pip install gguf"


def plain(raw: np.ndarray, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """float32 numbers [shape] of a type in PLAIN, by the `gguf` package. Raises UserError if one is NaN or infinite."""
    import gguf

    number = gguf.GGMLQuantizationType[kind]
    values = gguf.dequantize(raw.reshape(*shape[:-1], -1), number)
    if not np.isfinite(values).all():
        raise UserError("has a NaN or infinite scale; download the file again")
    return values.reshape(shape)
