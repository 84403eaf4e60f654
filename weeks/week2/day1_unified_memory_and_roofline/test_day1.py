"""Day 2.1 against a clock that the test turns, arrays as NumPy and MLX hold them, and formulas written out here.

Numbers are compared in float64: each is a handful of operations on exact inputs, so they agree to 1e-12 or are another formula.
"""

import contextlib
import math
import time

import mlx.core as mx
import numpy as np
import pytest

from tinymlx.learn.grading import assert_same, assert_true, unpack

MIB = 2**20


def check_number(got, want: float, what: str):
    """One number, an int or a float of Python's or NumPy's."""
    number = isinstance(got, int | float | np.number) and not isinstance(got, bool)
    assert_true(number, f"{what} is no number", expected=f"{want:.12g}", got=type(got).__name__)
    assert_true(
        math.isclose(got, want, rel_tol=1e-12), f"{what} is another one", expected=f"{want:.12g}", got=f"{got:.12g}"
    )


class Clock:
    """A trial that takes what the test says, on a clock that nothing else moves."""

    def __init__(self, takes):
        self.takes, self.now, self.calls = takes, 1000.0, 0

    def trial(self):
        self.now += self.takes(self.calls)
        self.calls += 1

    def measure(self, subject, seconds, amount=1.0):
        """subject.measure of this trial: its Rate."""
        with contextlib.ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for name in ("perf_counter", "monotonic", "time"):
                patch.setattr(time, name, lambda: self.now)
                patch.setattr(time, f"{name}_ns", lambda: round(self.now * 1e9))
            # A loop that never sees its end would turn for ever.
            rate = subject.measure("read", "this test", "GB/s", amount, self.limited, seconds)
        unpack(rate, 6, "what measure returns")
        assert_true(isinstance(rate, subject.Rate), "measure returns no Rate", got=type(rate).__name__)
        return rate

    def limited(self):
        assert_true(self.calls < 10_000, "measure does not end: 10,000 trials were run")
        self.trial()


class TestTask1Measure:
    def test_median_and_best(self, subject, rng):
        """`amount` over the median time, and over the shortest. A mean, or one time for all trials together, is pulled up by one that was disturbed."""
        a, b, c = rng.permutation([0.1, 0.25, 4.0]) * rng.uniform(1, 2)
        clock = Clock(lambda i: ([1.0, 1.0, a, b, c] + 99 * [1.0])[i])
        rate = clock.measure(subject, 0, amount=3.0)
        check_number(rate.median, 3.0 / np.median([a, b, c]), "the median rate")
        check_number(rate.best, 3.0 / min(a, b, c), "the best rate")

    def test_the_warm_up_counts_for_nothing(self, subject):
        """The first WARM_UP trials find cold caches, new pages, kernels being built: neither their times nor their seconds count. With the
        time of a slow warm-up counted, no time would be left to measure in."""
        clock = Clock(lambda i: 50.0 if i < subject.WARM_UP else 0.5)
        rate = clock.measure(subject, 10)
        check_number(rate.median, 2.0, "the median rate")
        assert_true(19 <= rate.trials <= 22, "trials of 0.5 s in 10 s", expected="about 20", got=str(rate.trials))
        fast = Clock(lambda i: 0.001 if i < subject.WARM_UP else 0.5)  # nor may a lucky one be the best
        check_number(fast.measure(subject, 3).best, 2.0, "the best rate")

    def test_three_trials_at_least(self, subject):
        """However little time there is: one trial alone is its own median and its own best, and says nothing."""
        clock = Clock(lambda i: 60.0)
        rate = clock.measure(subject, 0.1)
        assert_same(rate.trials, subject.FEWEST_TRIALS, what="the number of trials")
        assert_same(clock.calls, subject.WARM_UP + subject.FEWEST_TRIALS, what="the number of calls")

    def test_as_long_as_it_was_asked_to(self, subject, rng):
        """Trials go on until `seconds` have passed: a short trial is run often. Its number is reported."""
        takes = rng.uniform(0.01, 0.02)
        clock = Clock(lambda i: takes)
        rate = clock.measure(subject, 4)
        assert_same(rate.trials, clock.calls - subject.WARM_UP, what="the number of trials")
        whole = 4 / takes
        assert_true(
            whole - 1 <= rate.trials <= whole + 2, "trials in 4 s", expected=f"about {whole:.0f}", got=str(rate.trials)
        )

    def test_the_names_are_passed_on(self, subject):
        """name, by and unit come first in the Rate, as they were given."""
        rate = Clock(lambda i: 1.0).measure(subject, 0)
        assert_same((rate.name, rate.by, rate.unit), ("read", "this test", "GB/s"), what="name, by and unit")


class TestTask2Buffers:
    def test_sixteen_caches(self, subject, rng):
        """Of a buffer of 16 caches at most a sixteenth is still there when it is read again."""
        cache = 8 * MIB * int(rng.integers(40, 80))
        check_number(subject.past_cache(cache, 256 * MIB, 2**40), 16 * cache, "bytes past a large cache")

    def test_not_too_small(self, subject):
        """A small cache does not make a small buffer: a trial must last long enough for the clock."""
        check_number(subject.past_cache(MIB, 256 * MIB, 2**40), 256 * MIB, "bytes past a small cache")

    def test_spares_the_machine(self, subject):
        """An eighth of the usable memory at most, even where caches ask for more: a machine that swaps measures its disk."""
        got = subject.past_cache(512 * MIB, 256 * MIB, 8 * 800 * MIB)
        assert_true(
            isinstance(got, int), "bytes are counted in whole numbers", expected="an int", got=type(got).__name__
        )
        check_number(got, 800 * MIB, "bytes on a small machine")
        check_number(subject.past_cache(MIB, 4096 * MIB, 8 * 800 * MIB), 800 * MIB, "bytes on a small machine")

    def test_whole_eight_mib(self, subject, rng):
        """Rounded down, so that threads and buffers share it evenly and the limit still holds."""
        odd = int(rng.integers(1, 8 * MIB))
        check_number(subject.past_cache(MIB, 256 * MIB, 8 * (80 * MIB + odd)), 80 * MIB, "bytes, of an odd limit")
        check_number(subject.past_cache(MIB, 256 * MIB + odd, 2**40), 256 * MIB, "bytes, of an odd least")

    @pytest.mark.parametrize("threads", [1, 2, 3, 7])
    def test_equal_parts_of_all_bytes(self, subject, threads):
        """A part for each thread, all of `nbytes` in them, no part longer than another by more than one number."""
        parts = subject.touched(4 * 1000, threads)
        assert_true(isinstance(parts, list | tuple), "the parts are no list", got=type(parts).__name__)
        sizes = [np.shape(part) for part in parts]
        assert_same(len(sizes), threads, what="the number of parts")
        assert_true(all(len(size) == 1 for size in sizes), "a part is not one-dimensional", got=str(sizes))
        assert_same(sum(size[0] for size in sizes), 1000, what="the numbers in all parts together")
        assert_true(max(sizes)[0] - min(sizes)[0] <= 1, "the parts are not equal", got=str(sizes))

    def test_float32(self, subject):
        """Four bytes a number: in float64 there would be twice the bytes that are counted."""
        assert_same([str(part.dtype) for part in subject.touched(400, 2)], ["float32", "float32"], what="the dtypes")

    def test_everything_was_written(self, subject):
        """Memory that is only reserved has no pages of its own: the system shows one page of zeros in all places, and reading it reads a cache."""
        for part in subject.touched(4 * MIB, 3):
            assert_same(int((np.asarray(part) != 1).sum()), 0, what="how many numbers are not one")

    def test_every_number_has_its_own_place(self, subject):
        """A broadcast number looks like an array and is four bytes; one buffer given to all threads is read from a shared cache."""
        taken = []
        for part in subject.touched(4 * 3001, 3):
            assert_same(part.strides, (4,), what="the bytes from one number to the next")
            start = part.__array_interface__["data"][0]
            taken.append((start, start + part.nbytes))
        taken.sort()
        assert_true(all(a[1] <= b[0] for a, b in zip(taken, taken[1:])), "two parts share memory")


class TestTask3Roof:
    def test_the_slope(self, subject, rng):
        """Little arithmetic a byte: as many operations as bytes arrive, times the intensity. 10^9 bytes times operations a byte are a thousandth of a TFLOP."""
        gb_s, intensity = rng.uniform(10, 900), rng.uniform(0.1, 3)
        check_number(subject.attainable(intensity, gb_s, 40.0), gb_s * intensity / 1000, "TFLOP/s on the slope")

    def test_the_flat_part(self, subject, rng):
        """Much arithmetic a byte: what the units can do, however slowly or fast bytes come."""
        gb_s, tflop_s = rng.uniform(100, 900), rng.uniform(1, 40)
        check_number(subject.attainable(1000 * 40 / 100 + 1, gb_s, tflop_s), tflop_s, "TFLOP/s on the flat part")

    def test_where_they_meet(self, subject, rng):
        """At the ridge both give the same, and that is reached whole: bytes arrive while arithmetic goes on, so times do not add up."""
        gb_s, tflop_s = rng.uniform(10, 900), rng.uniform(1, 40)
        check_number(subject.attainable(tflop_s * 1000 / gb_s, gb_s, tflop_s), tflop_s, "TFLOP/s at the ridge")
        check_number(
            subject.attainable(0.5 * tflop_s * 1000 / gb_s, gb_s, tflop_s), tflop_s / 2, "TFLOP/s half-way there"
        )


def matrices(size, experts):
    """The weights' shapes of one Qwen3, its head included and its embedding not, as its checkpoint lists them; `experts` a layer."""
    attention = [(size.heads * 128, size.hidden), (size.kv_heads * 128, size.hidden)] * 2
    mlp = [(size.intermediate, size.hidden)] * 3 * (experts or 1)
    router = [(size.experts, size.hidden)] * bool(size.experts)
    return [*(attention + mlp + router) * size.layers, (151936, size.hidden)]


def read64(size, packing, float_bytes, context=0):
    """Bytes that decoding reads: weights and context."""
    weight = {"4bit": 0.5 + 2 * float_bytes / 64, "8bit": 1 + 2 * float_bytes / 64, "bf16": float_bytes}[packing]
    kv = 2 * size.layers * size.kv_heads * 128 * float_bytes
    return sum(n * k for n, k in matrices(size, size.chosen_experts)) * weight + context * kv


PACKED = pytest.mark.parametrize("packing", ["4bit", "8bit", "bf16"])


class TestTask4Bytes:
    @PACKED
    @pytest.mark.parametrize("dtype", [mx.float32, mx.float16], ids=["float32", "float16"])
    def test_a_weight_takes_what_mlx_keeps_of_it(self, subject, draw, packing, dtype):
        """Bits are not all: every 64 weights share a scale and a bias. Half a byte becomes 0.5625."""
        w = draw(3, 192, dtype=dtype)
        kept = (w,) if packing == "bf16" else mx.quantize(w, group_size=64, bits=int(packing[0]))
        check_number(
            subject.bytes_per_weight(packing, dtype.size), sum(a.nbytes for a in kept) / w.size, "bytes of a weight"
        )

    @pytest.mark.parametrize("packing, wanted", [("4bit", 0.5625), ("8bit", 1.0625), ("bf16", 2)])
    def test_two_bytes_without_being_told(self, subject, packing, wanted):
        """A GPU computes in half precision, so that is the default of `float_bytes`."""
        check_number(subject.bytes_per_weight(packing), wanted, "bytes of a weight")

    @PACKED
    @pytest.mark.parametrize("float_bytes", [2, 4])
    def test_a_dense_model(self, subject, packing, float_bytes):
        """Every matrix once, the output projection too, at the bytes of its packing; of an untied embedding only a row is read."""
        for size in (size for size in subject.SIZES if not size.experts):
            want = read64(size, packing, float_bytes)
            check_number(subject.bytes_per_token(size, packing, float_bytes), want, f"bytes a token of {size.name}")

    @PACKED
    def test_a_mixture_of_experts(self, subject, packing):
        """Only the chosen experts' matrices are read: of 128 a layer 8. That is why a 30B decodes like a 3B."""
        (size,) = (size for size in subject.SIZES if size.experts)
        check_number(subject.bytes_per_token(size, packing), read64(size, packing, 2), "bytes a token of the mixture")

    @pytest.mark.parametrize("float_bytes", [2, 4])
    def test_keys_and_values(self, subject, rng, float_bytes):
        """Both of them, in every layer, of the heads that are kept, which are fewer than the query heads."""
        layers, heads, kv_heads = int(rng.integers(1, 90)), 8 * int(rng.integers(5, 9)), int(rng.integers(2, 5))
        size = subject.Size("one", layers, 1024, heads, kv_heads, 3072, True)
        want = sum(np.zeros((kv_heads, 128)).size * float_bytes for _ in range(layers) for _ in "kv")
        check_number(subject.kv_bytes_per_token(size, float_bytes), want, "bytes of K/V a token")
        if float_bytes == 2:
            check_number(subject.kv_bytes_per_token(size), want, "bytes of K/V a token")


def flops64(size, context):
    """Two a weight that is used, four a token that is looked at, head and number of it."""
    return 2 * sum(n * k for n, k in matrices(size, size.chosen_experts)) + 4 * context * size.heads * 128 * size.layers


def check_decode(subject, size, roof, packing, float_bytes, context):
    work = subject.decode(size, packing, roof, float_bytes, context)
    assert_true(isinstance(work, subject.Work), "decode returns no Work", got=type(work).__name__)
    read, flops = read64(size, packing, float_bytes, context), flops64(size, context)
    in_memory, in_units = read / (roof.gb_s * 1e9), flops / (roof.tflop_s * 1e12)
    assert_same((work.model, work.phase), (size.name, "decode"), what="model and phase")
    check_number(work.intensity, flops / read, "operations a byte")
    check_number(work.tokens_per_s, 1 / max(in_memory, in_units), "tokens a second")
    assert_same(work.bound_by, "memory" if in_memory > in_units else "arithmetic", what="what bounds it")


class TestTask5Prediction:
    def test_bandwidth_over_bytes(self, subject, rng):
        """No token is there before its bytes are. A GB is 10^9 bytes here as in data sheets, not 2^30."""
        read, gb_s = rng.uniform(1e8, 1e10), rng.uniform(10, 900)
        check_number(subject.most_tokens_per_s(read, gb_s), gb_s * 1e9 / read, "tokens a second")

    @PACKED
    def test_no_context(self, subject, rng, packing):
        """Weights alone: two operations a weight over its bytes, far left of the ridge."""
        roof = subject.Roof(rng.uniform(60, 800), 1000.0)
        for size in subject.SIZES:
            check_decode(subject, size, roof, packing, 2, 0)

    @PACKED
    def test_a_long_context(self, subject, rng, packing):
        """K/V of every token before is read too, and multiplied: both bytes and operations grow with the context."""
        roof = subject.Roof(rng.uniform(60, 800), 1000.0)
        for size in subject.SIZES:
            check_decode(subject, size, roof, packing, 2, int(rng.integers(1000, 40000)))

    def test_in_float32(self, subject, rng):
        """On a CPU scales and K/V have four bytes."""
        check_decode(
            subject, subject.SIZES[0], subject.Roof(rng.uniform(10, 90), 100.0), "4bit", 4, int(rng.integers(1, 4096))
        )

    def test_slow_arithmetic(self, subject, rng):
        """Decoding is bound by memory only where arithmetic is fast enough: a CPU without a good BLAS is not."""
        for size in subject.SIZES:
            check_decode(subject, size, subject.Roof(rng.uniform(60, 800), 0.005), "4bit", 2, 512)

    def test_the_usual_context(self, subject):
        """CONTEXT tokens where none is given."""
        roof, size = subject.Roof(100.0, 1000.0), subject.SIZES[1]
        work = subject.decode(size, "8bit", roof, 2)
        check_number(work.tokens_per_s, 100e9 / read64(size, "8bit", 2, subject.CONTEXT), "tokens a second")
