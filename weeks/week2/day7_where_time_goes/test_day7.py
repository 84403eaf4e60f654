"""Day 2.7 against NumPy's least squares, sums written out here, and steps whose truth is known.

Floors, splits and gains are a handful of float64 operations: they agree to 1e-12 or are another formula. A fit solves two equations whose
columns are told apart well here: 1e-7 leaves room for any sound way of solving them.
"""

import math

import numpy as np
import pytest

from tinymlx.learn.grading import assert_same, assert_true, unpack


def check_number(got, want: float, what: str, relative: float = 1e-12, absolute: float = 0.0):
    """One number, an int or a float of Python's or NumPy's."""
    number = isinstance(got, int | float | np.number) and not isinstance(got, bool)
    assert_true(number, f"{what} is no number", expected=f"{want:.12g}", got=type(got).__name__)
    near = math.isclose(got, want, rel_tol=relative, abs_tol=absolute)
    assert_true(near, f"{what} is another one", expected=f"{want:.12g}", got=f"{got:.12g}")


class TestTask1Floor:
    def test_bytes(self, subject, rng):
        """Decoding: few operations a byte, so the floor is bytes over bandwidth. A GB is 10^9 bytes."""
        roof, nbytes = subject.Roof(rng.uniform(10, 900), 30.0), rng.uniform(1e6, 1e10)
        check_number(subject.floor_s(nbytes, 2 * nbytes, roof), nbytes / roof.gb_s / 1e9, "the floor")

    def test_arithmetic(self, subject, rng):
        """Prefill: hundreds of operations a byte, so the floor is operations over what the units do. A TFLOP is 10^12."""
        roof, flops = subject.Roof(500.0, rng.uniform(0.05, 30)), rng.uniform(1e9, 1e14)
        check_number(subject.floor_s(flops / 1e6, flops, roof), flops / roof.tflop_s / 1e12, "the floor")

    def test_at_once(self, subject, rng):
        """Where both take equally long, the floor is that time and not twice it: bytes arrive while arithmetic goes on."""
        roof, seconds = subject.Roof(rng.uniform(10, 900), rng.uniform(1, 30)), rng.uniform(1e-6, 1e-2)
        got = subject.floor_s(seconds * roof.gb_s * 1e9, seconds * roof.tflop_s * 1e12, roof)
        check_number(got, seconds, "the floor at the ridge")

    def test_nothing_to_do(self, subject, rng):
        """An operation without weights has a floor of 0: all of its time is calls and gap."""
        roof = subject.Roof(100.0, 2.0)
        check_number(subject.floor_s(0.0, 0, roof), 0.0, "the floor of nothing")
        flops = rng.uniform(1e6, 1e9)
        check_number(subject.floor_s(0.0, flops, roof), flops / 2e12, "the floor of arithmetic alone")


def fitted(subject, calls, nbytes, seconds):
    """subject.fit of lists: its Line."""
    line = subject.fit([float(c) for c in calls], [float(b) for b in nbytes], [float(t) for t in seconds])
    unpack(line, 2, "what fit returns")
    assert_true(isinstance(line, subject.Line), "fit returns no Line", got=type(line).__name__)
    return line


def relative_fit(calls, nbytes, seconds):
    """(call_s, seconds a byte) by NumPy: each equation is divided by its measurement, each column brought to size 1."""
    columns = np.stack([calls / seconds, nbytes / seconds], axis=1)
    sizes = np.linalg.norm(columns, axis=0)
    return np.linalg.lstsq(columns / sizes, np.ones(len(seconds)), rcond=None)[0] / sizes


def a_step(rng, call_s, gb_s, noise):
    """Measurements from many small calls to few large ones: their times span four decades, and calls matter only to the short ones."""
    calls = rng.permutation([1.0, 7, 28, 28, 28, 56, 200])
    nbytes = calls * call_s * gb_s * 1e9 * rng.permutation(10.0 ** np.array([-3, -2, -1, 0, 1, 2, 3]))
    exact = calls * call_s + nbytes / (gb_s * 1e9)
    return calls, nbytes, exact * rng.uniform(1 - noise, 1 + noise, len(exact))


class TestTask2Fit:
    def test_two_measurements(self, subject, rng):
        """Two equations, two unknowns: the line goes through both."""
        call_s, gb_s = rng.uniform(1e-6, 1e-4), rng.uniform(0.5, 900)
        calls, nbytes = np.array([28.0, 28]), 28 * call_s * gb_s * 1e9 * np.array([0.1, 9])
        line = fitted(subject, calls, nbytes, calls * call_s + nbytes / (gb_s * 1e9))
        check_number(line.call_s, call_s, "seconds a call", 1e-7)
        check_number(line.gb_s, gb_s, "GB/s", 1e-7)

    @pytest.mark.parametrize("gb_s", [0.5, 15.0, 4000.0])
    def test_many_exact_measurements(self, subject, rng, gb_s):
        """Measurements without errors have one line, however they are weighed. Nothing is added besides: no call and no byte take no time."""
        call_s = rng.uniform(1e-6, 1e-4)
        line = fitted(subject, *a_step(rng, call_s, gb_s, 0.0))
        check_number(line.call_s, call_s, "seconds a call", 1e-7)
        check_number(line.gb_s, gb_s, "GB/s", 1e-7)

    def test_relative_errors(self, subject, rng):
        """A measurement is off by a share of itself. Unweighted, the longest one's error would be larger than everything the short ones have to say
        about the cost of a call. So errors are divided by the measurements before they are squared."""
        calls, nbytes, seconds = a_step(rng, rng.uniform(1e-6, 1e-4), rng.uniform(1, 900), 0.1)
        line = fitted(subject, calls, nbytes, seconds)
        call_s, byte_s = relative_fit(calls, nbytes, seconds)
        check_number(line.call_s, call_s, "seconds a call", 1e-7)
        check_number(line.gb_s, 1e-9 / byte_s, "GB/s", 1e-7)

    def test_no_negative_call(self, subject, rng):
        """Large measurements slower than the small ones' line make a call's cost negative. It is 0 then, and bytes are fitted alone, not kept as they were."""
        nbytes = np.array([1e6, 1e7, 1e8]) * rng.uniform(1, 2)
        seconds = nbytes / 10e9 * np.array([1.0, 1.6, 2.0])
        line = fitted(subject, [28, 28, 28], nbytes, seconds)
        check_number(line.call_s, 0.0, "seconds a call")
        share = nbytes / seconds  # the least sum of (share * byte_s - 1)^2
        check_number(line.gb_s, 1e-9 * (share**2).sum() / share.sum(), "GB/s, fitted alone", 1e-7)

    def test_no_negative_byte(self, subject, rng):
        """Times that fall as bytes grow say nothing of bandwidth: it is infinite then, and calls are fitted alone."""
        seconds = np.array([4e-3, 3e-3, 2e-3]) * rng.uniform(1, 2)
        line = fitted(subject, [28, 28, 28], [1e6, 2e6, 3e6], seconds)
        assert_same(float(line.gb_s), math.inf, what="GB/s")
        share = 28 / seconds
        check_number(line.call_s, share.sum() / (share**2).sum(), "seconds a call, fitted alone", 1e-7)


def check_split(subject, seconds, floor, calls, want):
    parts = subject.split(seconds, floor, calls)
    unpack(parts, 3, "what split returns")
    assert_true(isinstance(parts, subject.Split), "split returns no Split", got=type(parts).__name__)
    for name, number in zip(("floor", "calls", "gap"), want):
        check_number(getattr(parts, name), number, name, 1e-9, absolute=1e-12 * seconds)


class TestTask3Split:
    def test_all_three(self, subject, rng):
        """Time enough for floor and calls: the rest is the gap."""
        floor, calls, gap = rng.uniform(1e-4, 1e-2, 3)
        check_split(subject, floor + calls + gap, floor, calls, (floor, calls, gap))

    def test_calls_behind_bytes(self, subject, rng):
        """A device that enqueues calls while bytes arrive hides some of them: floor and calls together are longer than what was measured. The floor
        is certain, so calls get what is left, and there is no gap, least of all a negative one."""
        floor, left, hidden = rng.uniform(1e-4, 1e-2, 3)
        check_split(subject, floor + left, floor, left + hidden, (floor, left, 0.0))

    def test_faster_than_the_floor(self, subject, rng):
        """Weights that stayed in a cache beat the memory's floor. The parts still add up to what was measured."""
        seconds, more, calls = rng.uniform(1e-4, 1e-2, 3)
        check_split(subject, seconds, seconds + more, calls, (seconds, 0.0, 0.0))

    def test_nothing_but_a_gap(self, subject, rng):
        """No bytes, no calls' cost: all of it is unexplained."""
        seconds = rng.uniform(1e-4, 1e-2)
        check_split(subject, seconds, 0.0, 0.0, (0.0, 0.0, seconds))


def check_gains(subject, step_s, parts, want):
    got = subject.gains(step_s, parts)
    assert_true(isinstance(got, list | tuple), "gains returns no list", got=type(got).__name__)
    pairs = [unpack(pair, 2, "each gain") for pair in got]
    assert_same([name for name, _ in pairs], [name for name, _ in want], what="the operations, the best first")
    for (name, gain), (_, expected) in zip(pairs, want):
        check_number(gain, expected, f"the gain of {name}", 1e-9)


class TestTask4Gains:
    def test_the_rest_stays(self, subject, rng):
        """Twice as fast an operation makes twice as fast a step only if there is nothing else in it."""
        other, now = rng.uniform(1, 9, 2)
        check_gains(subject, other + now, {"one": (now, now / 2)}, [("one", (other + now) / (other + now / 2))])
        check_gains(subject, now, {"all": (now, now / 2)}, [("all", 2.0)])

    def test_the_best_first(self, subject, rng):
        """By what the step gains: that is the time saved, not the factor. An operation ten times too slow may not be worth an hour."""
        scale = rng.uniform(0.1, 10)
        parts = {"tiny": (0.1, 0.01), "large": (6.0, 4.0), "middle": (3.0, 2.0), "done": (1.0, 1.0)}
        parts = {name: (now * scale, then * scale) for name, (now, then) in parts.items()}
        step = 12 * scale  # 1.9 of waiting, which nobody shortens
        want = [("large", 12 / 10), ("middle", 12 / 11), ("tiny", 12 / 11.91), ("done", 1.0)]
        check_gains(subject, step, parts, want)

    def test_the_step_is_what_was_measured(self, subject, rng):
        """A step is longer than its operations together, by all waiting in between: it counts, and no better operation takes it away."""
        waiting = rng.uniform(5, 9)
        check_gains(subject, 2.0 + waiting, {"all": (2.0, 0.0)}, [("all", (2 + waiting) / waiting)])

    def test_each_alone(self, subject, rng):
        """Gains do not add up to each other: each is what one improvement is worth while all others stay as they are."""
        a, b = rng.uniform(1, 3), rng.uniform(4, 6)
        want = [("b", (a + b) / (a + b / 2)), ("a", (a + b) / (b + a / 2))]
        check_gains(subject, a + b, {"a": (a, a / 2), "b": (b, b / 2)}, want)

    def test_a_loss(self, subject, rng):
        """A change for the worse is a gain below 1, and comes last. One operation alone is a list of one, none an empty list."""
        worse = rng.uniform(3, 5)
        check_gains(
            subject, 10.0, {"slower": (2.0, worse), "same": (1.0, 1.0)}, [("same", 1.0), ("slower", 10 / (8 + worse))]
        )
        check_gains(subject, 10.0, {}, [])
