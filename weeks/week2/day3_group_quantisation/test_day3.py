"""Day 2.3 against NumPy: bits by np.packbits, groups in float32 and float64. U = 2^-24 is what one float32 rounding costs at most."""

import mlx.core as mx
import numpy as np
import pytest

from tinymlx.learn.grading import assert_close, assert_same, assert_true, roundoff, to_float64, unpack

U = roundoff(mx.float32)
BITS = pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
GROUPS = pytest.mark.parametrize("group_size", [32, 64, 128])
DTYPES = pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=["float32", "float16", "bfloat16"])


def in_words(codes, bits):
    """[..., K] -> [..., K * bits / 32], by the stream of bits."""
    stream = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8)
    packed = np.packbits(stream.reshape(*codes.shape[:-1], codes.shape[-1] * bits), axis=-1, bitorder="little")
    return packed.view("<u4").astype(np.uint32)


def in_numbers(words, bits):
    stream = np.unpackbits(words.astype("<u4").view(np.uint8), axis=-1, bitorder="little").astype(np.uint32)
    return (stream.reshape(*words.shape[:-1], -1, bits) << np.arange(bits, dtype=np.uint32)).sum(-1, dtype=np.uint32)


def words(array, what):
    """The result as NumPy, once it is an array of uint32."""
    assert_true(isinstance(array, mx.array), f"{what} is no MLX array", got=type(array).__name__)
    assert_true(array.dtype == mx.uint32, f"{what} has another dtype", expected="uint32", got=str(array.dtype))
    return np.array(array)


def some(rng, bits, *shape):
    return rng.integers(0, 2**bits, shape).astype(np.uint32)


class TestTask1Pack:
    @BITS
    @pytest.mark.parametrize("K", [32, 96, 992])
    def test_against_the_stream_of_bits(self, subject, rng, bits, K):
        """The bits of number i come at i * bits and the lowest first. Nothing is left empty: 32 numbers of 3 bits are 3 words."""
        codes = some(rng, bits, 3, K)
        assert_same(words(subject.pack(mx.array(codes), bits), "packed"), in_words(codes, bits), what="packed")

    def test_the_first_number_is_lowest(self, subject):
        """0, 1, 2, ... 7 in 4 bits read as 0x76543210. The other way round a kernel would multiply w[7] by x[0]."""
        codes = mx.arange(32, dtype=mx.uint32) % 8
        assert_same(
            [hex(word) for word in words(subject.pack(codes, 4), "packed").tolist()], ["0x76543210"] * 4, what="packed"
        )

    @BITS
    def test_the_highest_bit_of_a_word(self, subject, bits):
        """Numbers of all ones fill every bit: 0xffffffff. As a signed word that is -1, and in fewer than 32 bits a shift loses it."""
        codes = mx.full((64,), 2**bits - 1, mx.uint32)
        want = np.full(2 * bits, 0xFFFFFFFF, np.uint32)
        assert_same(words(subject.pack(codes, bits), "packed"), want, what="packed")

    @pytest.mark.parametrize("shape", [(64,), (1, 32), (2, 3, 96)], ids=str)
    def test_any_leading_axes(self, subject, rng, shape):
        """Rows are packed one by one, with or without axes before them: experts have [E, N, K]."""
        for bits in (4, 6):
            codes = some(rng, bits, *shape)
            assert_same(words(subject.pack(mx.array(codes), bits), "packed"), in_words(codes, bits), what="packed")


class TestTask2Unpack:
    @BITS
    @pytest.mark.parametrize("K", [32, 96, 992])
    def test_against_the_stream_of_bits(self, subject, rng, bits, K):
        """Each number is `bits` bits of its row's stream, whether they lie in one word or in two; K = W * 32 / bits of them."""
        codes = some(rng, bits, 3, K)
        got = words(subject.unpack(mx.array(in_words(codes, bits)), bits), "numbers")
        assert_same(got, codes, what="numbers")

    def test_the_first_number_is_lowest(self, subject):
        """0x76543210 in 4 bits is 0, 1, 2, ... 7, not 7, 6, 5, ... 0 and not its bytes from the top."""
        got = words(subject.unpack(mx.array([0x76543210] * 4, mx.uint32), 4), "numbers")
        assert_same(got, np.arange(32, dtype=np.uint32) % 8, what="numbers")

    @BITS
    def test_nothing_of_the_neighbours(self, subject, bits):
        """A number is what remains under the mask 2^bits - 1: shifted down alone, it still carries all numbers above it."""
        full, empty = np.array([0xFFFFFFFF] * bits, np.uint32), np.zeros(bits, np.uint32)
        got = words(subject.unpack(mx.array(np.stack([full, empty])), bits), "numbers")
        assert_same(got, np.stack([np.full(32, 2**bits - 1, np.uint32), np.zeros(32, np.uint32)]), what="numbers")

    @pytest.mark.parametrize("shape", [(64,), (1, 32), (2, 3, 96)], ids=str)
    def test_any_leading_axes(self, subject, rng, shape):
        """Rows are unpacked one by one, with or without axes before them."""
        for bits in (4, 6):
            codes = some(rng, bits, *shape)
            got = words(subject.unpack(mx.array(in_words(codes, bits)), bits), "numbers")
            assert_same(got, codes, what="numbers")


def grouped(w, group_size, bits):
    """Steps [..., K] from the bias before they are rounded, and scale and bias [..., K / group_size], by the chapter's formulas in float32."""
    groups = w.astype(np.float32).reshape(*w.shape[:-1], -1, group_size)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    step = np.maximum((high - low) / np.float32(2**bits - 1), np.float32(1e-7))
    edge = np.where(abs(low) > abs(high), low, high)
    step = np.where(abs(low) > abs(high), step, -step)
    whole = np.rint(edge / step)
    scale = np.where(whole == 0, step, edge / np.where(whole == 0, 1, whole)).astype(np.float32)
    bias = np.where(whole == 0, 0, edge).astype(np.float32)
    steps = (groups.astype(np.float64) - bias) / scale
    return steps.reshape(w.shape), scale[..., 0], bias[..., 0]


def check_quantize(subject, w, group_size, bits):
    packed, scales, biases = unpack(subject.quantize(w, group_size, bits), 3, "packed, scales and biases")
    steps, scale, bias = grouped(to_float64(w), group_size, bits)
    u = roundoff(w.dtype)
    # scale: a difference, two quotients in float32, then w's dtype, whose smallest numbers are 2^-24 apart in float16.
    tiny = 2.0**-24 if w.dtype == mx.float16 else 1e-37
    scale, bias = scale.astype(np.float64), bias.astype(np.float64)
    assert_close(scales, scale, 4 * U * abs(scale) + u * abs(scale) + tiny, dtype=w.dtype, what="scales")
    assert_close(biases, bias, u * abs(bias) + tiny, dtype=w.dtype, what="biases")
    packed = words(packed, "packed")
    shape = (*w.shape[:-1], w.shape[-1] * bits // 32)
    assert_true(packed.shape == shape, "packed has another shape", expected=str(shape), got=str(packed.shape))
    codes = in_numbers(packed, bits).astype(np.float64)
    # Steps are up to 2^bits, each wrong by a few float32 roundings: beside a half, both whole numbers are right.
    want = np.clip(np.rint(steps), 0, 2**bits - 1)
    undecided = abs(abs(steps - np.floor(steps)) - 0.5) < 1e-3
    assert_close(mx.array(codes.astype(np.float32)), want, np.where(undecided, 1, 0), what="codes")


class TestTask3Quantize:
    @DTYPES
    @BITS
    def test_against_numpy(self, subject, draw, dtype, bits):
        """Each group by the chapter's formulas: scale, bias, and the nearest whole number of steps, packed."""
        for group_size in (32, 64, 128):
            check_quantize(subject, draw(3, 3 * group_size, dtype=dtype), group_size, bits)

    @BITS
    def test_zero_is_one_of_the_numbers(self, subject, draw, bits):
        """0 comes back as 0, whatever surrounds it. Between two plain ends it would lie beside a step, and each masked weight would leak."""
        w = draw(7, 64) * (mx.arange(64) % 3 > 0)
        packed, scales, biases = unpack(subject.quantize(w, 64, bits), 3, "packed, scales and biases")
        codes = in_numbers(words(packed, "packed"), bits)
        back = codes * to_float64(scales) + to_float64(biases)
        # q, a whole number, times a rounded quotient: two roundings of the edge.
        bound = 2 * U * abs(to_float64(biases)) * np.ones((1, 64))
        zero = to_float64(w) == 0
        assert_close(mx.array(np.where(zero, back, 0).astype(np.float32)), np.zeros((7, 64)), bound, what="zeros")

    def test_the_larger_end_is_kept(self, subject, draw):
        """The bias is the number that is furthest from 0, of either sign, as it is: the largest weight has no error at all."""
        w = draw(8, 64)
        w = mx.concatenate([w, -w])
        _, _, biases = unpack(subject.quantize(w, 64, 4), 3, "packed, scales and biases")
        values = to_float64(w)
        want = np.take_along_axis(values, abs(values).argmax(-1, keepdims=True), -1)
        assert_close(biases, want, 0, dtype=mx.float32, what="biases")

    @BITS
    def test_groups_of_one_number(self, subject, bits):
        """All zeros, all ones, all 1e-9: there is no range to divide. A step of 1e-7 at least keeps 0 / 0 out of the weights."""
        w = mx.repeat(mx.array([[0.0], [1.0], [-1.0], [1e-9], [-3e-8]]), 32, axis=1)
        check_quantize(subject, w, 32, bits)

    @GROUPS
    def test_groups_of_one_sign(self, subject, draw, group_size):
        """From 3 to 4, or from -4 to -3: the steps are counted from the end further from 0, and the nearer one gets the largest number."""
        w = 3 + mx.abs(mx.clip(draw(2, 2 * group_size), -1, 1))
        check_quantize(subject, mx.concatenate([w, -w]), group_size, 4)

    def test_an_outlier_stays_in_its_group(self, subject, draw):
        """Only the 32 numbers beside an outlier lose precision. Every group has ends of its own, every row too."""
        w = draw(3, 96)
        w[1, 40] = 100.0
        check_quantize(subject, w, 32, 4)

    @BITS
    def test_clipped_at_the_far_end(self, subject, bits):
        """A whole number of steps to 0 may shorten the step, and the far end then lies past the last one: it gets the last, not one more."""
        for low in np.linspace(-0.95, -0.05, 19):
            check_quantize(
                subject, mx.concatenate([mx.linspace(low, 1.0, 32), mx.linspace(1.0, low, 32)])[None], 32, bits
            )

    @pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
    def test_scales_are_rounded_last(self, subject, draw, dtype):
        """Codes come from the float32 scale. Half-precision arithmetic, or a scale rounded before it divides, moves many by one."""
        check_quantize(subject, draw(8, 256, dtype=dtype), 64, 8)

    def test_experts(self, subject, draw):
        """[E, N, K]: groups lie along the last axis, whatever is before it; one row [K] is fine too."""
        check_quantize(subject, draw(2, 3, 64), 32, 4)
        check_quantize(subject, draw(64), 64, 4)


def check_dequantize(subject, rng, shape, group_size, bits, dtype):
    codes = some(rng, bits, *shape)
    scaled = (*shape[:-1], shape[-1] // group_size)
    scales, biases = (mx.array(rng.standard_normal(scaled).astype(np.float32)).astype(dtype) for _ in range(2))
    w = subject.Linear(
        mx.array(in_words(codes, bits)), None, scales, biases, subject.Quantization(group_size, bits, "affine")
    )
    product = np.repeat(to_float64(scales), group_size, -1) * codes
    want, u = product + np.repeat(to_float64(biases), group_size, -1), roundoff(dtype)
    # The product is rounded, then the sum; 1.1 for the second order.
    bound = 1.1 * u * (abs(product) + abs(want)) + (2.0**-23 if dtype == mx.float16 else 1e-37)
    assert_close(subject.dequantize(w), want, bound, dtype=dtype, what="weight")


class TestTask4Dequantize:
    @DTYPES
    @BITS
    def test_against_float64(self, subject, rng, dtype, bits):
        """scale * q + bias, each number with scale and bias of its own group, in the dtype of the scales."""
        for group_size in (32, 64, 128):
            check_dequantize(subject, rng, (3, 3 * group_size), group_size, bits, dtype)

    def test_neighbours_share_a_scale(self, subject):
        """The first 32 numbers belong to group 0, the next 32 to group 1: not every second one, and not one group a row."""
        packing = subject.Quantization(32, 4, "affine")
        scales, biases = mx.array([[1.0, 100.0]]), mx.array([[0.0, 5.0]])
        w = subject.Linear(mx.full((1, 8), 0x33333333, mx.uint32), None, scales, biases, packing)
        assert_close(subject.dequantize(w), np.repeat([[3.0, 305.0]], 32, -1), 0, dtype=mx.float32, what="weight")

    @pytest.mark.parametrize("shape", [(2, 3, 64), (5, 64), (0, 64)], ids=str)
    def test_any_leading_axes(self, subject, rng, shape):
        """Experts are [E, N, K]; an embedding asks for as many rows as there are tokens, and that may be none."""
        check_dequantize(subject, rng, shape, 32, 4, mx.float32)

    def test_a_dense_weight_stays(self, subject, draw):
        """Without quantization there is nothing to unpack: w.weight comes back. Norms' neighbours in a checkpoint are often dense."""
        w = draw(3, 7, dtype=mx.bfloat16)
        assert_close(subject.dequantize(subject.Linear(w)), to_float64(w), 0, dtype=mx.bfloat16, what="weight")

    def test_other_modes_are_mlx(self, subject, draw):
        """mxfp4 packs floating-point numbers of 4 bits and has no biases: mx.dequantize does it."""
        packed, scales = mx.quantize(draw(3, 64), group_size=32, bits=4, mode="mxfp4")
        want = to_float64(mx.dequantize(packed, scales, group_size=32, bits=4, mode="mxfp4"))
        w = subject.Linear(packed, None, scales, None, subject.Quantization(32, 4, "mxfp4"))
        assert_close(subject.dequantize(w), want, 0, what="weight")
