"""Kernels of tests/kernels broken by one edit of their text each, and what a check must say of them."""

from dataclasses import dataclass

from metal_cases import CASES

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
RACE, OUTSIDE, UNSET = "race", "out of bounds", "uninitialised threadgroup memory"
BARRIERS, COLLECTIVE, UNWRITTEN, VALUE = "barrier divergence", "divergent collective", "unwritten output", "wrong value"


@dataclass(frozen=True)
class Broken:
    """`old` becomes `new` at its `nth` occurrence. The finding must name the line that holds `at` after the edit."""

    case: str
    old: str
    new: str
    kind: str
    at: str | None = None
    nth: int = 0

    @property
    def name(self) -> str:
        return f"{self.case}-{self.kind}-{BROKEN.index(self)}".replace(" ", "-")

    def edit(self, text: str) -> str:
        parts = text.split(self.old)
        if len(parts) <= self.nth + 1:
            return text
        return self.old.join(parts[: self.nth + 1]) + self.new + self.old.join(parts[self.nth + 1 :])

    def applies(self) -> bool:
        kernel = CASES[self.case]().kernel
        return sum(self.edit(kernel[part]) != kernel[part] for part in ("header", "source")) == 1

    def line(self) -> int | None:
        """Of `at` in the edited header or source; 0 for a finding on an output as a whole."""
        if self.at is None:
            return 0
        kernel = CASES[self.case]().kernel
        texts = [self.edit(kernel[part]) for part in ("header", "source")]
        (lines,) = [
            found for text in texts if (found := [i for i, s in enumerate(text.splitlines(), 1) if self.at in s])
        ]
        assert len(lines) == 1, f"{self.at!r} stands on {len(lines)} lines"
        return lines[0]


BROKEN = [
    # A missing barrier
    Broken("tree_sum", BARRIER, "", RACE, "part[t] += part", 0),
    Broken("tree_sum", BARRIER, "", RACE, "part[t] += part", 1),
    Broken("softmax", BARRIER, "", RACE, "top = max(top, part[s]);", 0),
    Broken("softmax", BARRIER, "", RACE, "if (lane == 0) part[simdgroup] = sum;", 1),
    Broken("softmax", BARRIER, "", RACE, "sum += part[s];", 2),
    Broken("product", BARRIER, "", RACE, "simdgroup_load(l, left", 0),
    Broken("product", BARRIER, "", RACE, "left[i] = row", 1),
    Broken("histogram", BARRIER, "", "wrong value", None, 0),
    Broken("transpose", BARRIER, "", RACE, "block[t.x][j];"),
    Broken("scan", BARRIER, "", RACE, "before += sums[s];"),
    Broken("stencil", BARRIER, "", RACE, "y[i] = block[t]"),
    Broken("reverse", "simdgroup_barrier(mem_flags::mem_threadgroup);", "", RACE, "float turned = mine"),
    # A barrier that fences the wrong memory
    Broken("tree_sum", "mem_flags::mem_threadgroup", "mem_flags::mem_device", RACE, "part[t] += part", 0),
    Broken("softmax", "mem_flags::mem_threadgroup", "mem_flags::mem_none", RACE, "sum += part[s];", 2),
    Broken("stencil", "mem_flags::mem_threadgroup", "mem_flags::mem_device", RACE, "y[i] = block[t]"),
    Broken("reverse", "mem_flags::mem_threadgroup", "mem_flags::mem_none", RACE, "float turned = mine"),
    Broken("scan", "threadgroup_barrier", "simdgroup_barrier", RACE, "before += sums[s];"),
    # A race of another kind
    Broken(
        "histogram",
        "atomic_fetch_add_explicit(&mine[x[i] & 15], 1u, memory_order_relaxed);",
        "((threadgroup uint*)mine)[x[i] & 15] += 1;",
        RACE,
        "((threadgroup uint*)mine)",
    ),
    Broken(
        "histogram",
        "atomic_fetch_add_explicit(&counts[bin], count, memory_order_relaxed);",
        "((device uint*)counts)[bin] += count;",
        RACE,
        "((device uint*)counts)",
    ),
    Broken("tree_sum", "if (t == 0) {", "if (t <= 1) {", "same value written twice", "y[row] = part[0];"),
    Broken("tree_sum", "y[row] = part[0]", "y[0] = part[0]", RACE, "y[0] = part[0]"),
    Broken("softmax", "part[simdgroup] = top", "part[0] = top", RACE, "part[0] = top"),
    Broken("reverse", "scratch + 32 * simdgroup", "scratch", RACE, "mine[lane] = value;"),
    Broken("transpose", "block[j][t.x] = x", "block[j][t.x / 2] = x", RACE, "block[j][t.x / 2] = x"),
    # Memory that nothing wrote
    Broken("scan", "lane == 31", "lane == 31 && simdgroup > 0", UNSET, "before += sums[s];"),
    Broken("stencil", "if (t == 0) block[0]", "if (t == 0 && i > 0) block[0]", UNSET, "y[i] = block[t]"),
    Broken("softmax", "s < SIMDGROUPS", "s <= SIMDGROUPS", OUTSIDE, "top = max(top, part[s]);", 0),
    Broken("product", "i < 16 * 8", "i < 15 * 8", UNSET, "simdgroup_load(l, left"),
    Broken("tree_sum", "part[t] = sum;", "if (t < n % 128) part[t] = sum;", UNSET, "part[t] += part"),
    # Outside of a buffer
    Broken("map", "first + 4 <= n", "first < n", OUTSIDE, "vec<T, 4> v ="),
    Broken("map", "i < n; i++", "i <= n; i++", OUTSIDE, "i <= n; i++"),
    Broken("tree_sum", "i < n; i", "i <= n; i", OUTSIDE, "sum += float(x[row * n + i]);"),
    Broken("tree_sum", "part[128]", "part[96]", OUTSIDE, "part[t] = sum;"),
    Broken("tree_sum", "half_way = THREADS / 2", "half_way = THREADS", OUTSIDE, "part[t] += part"),
    Broken(
        "transpose", "if (row < columns && column < rows)", "if (row < columns)", OUTSIDE, "y[row * rows + column] ="
    ),
    Broken("stencil", "i > 0 ? x[i - 1] : 0.0f", "x[int(i) - 1]", OUTSIDE, "x[int(i) - 1]"),
    Broken("stencil", "block[66]", "block[65]", OUTSIDE, "if (t == BLOCK - 1)"),
    Broken("w4_dot", "word / 4", "word / 2", OUTSIDE, "float scale ="),
    Broken("w4_dot", "row * (K / 8) + word", "row * K + word", OUTSIDE, "uint packed ="),
    Broken("scan", "if (t < n)", "if (t <= n)", OUTSIDE, "y[t] = before"),
    Broken("histogram", "x[i] & 15", "x[i] + 60", OUTSIDE, "x[i] + 60"),
    Broken("reverse", "y[2 * i + 1] = pair", "y[2 * i + 2] = pair", OUTSIDE, "y[2 * i + 2]"),
    # Values
    Broken("w4_dot", ">> (4 * i)", ">> (3 * i)", VALUE),
    Broken("w4_dot", "0xf", "0x7", VALUE),
    Broken("w4_dot", ">> (4 * i)", ">> (8 * i)", "shift by the width of the type or more", "(8 * i)"),
    Broken("softmax", "sum = simd_sum(sum);", "", VALUE),
    Broken("product", "(l, left + 64 * simdgroup, 8)", "(l, left + 64 * simdgroup, 8, 0, true)", VALUE),
    Broken("scan", "s < simdgroup;", "s <= simdgroup;", VALUE),
    Broken("map", "float4(v) + b", "float4(v) - b", VALUE),
    # Output that nothing wrote
    Broken("stencil", "if (i < n) {", "if (i > 0 && i < n) {", UNWRITTEN),
    Broken("map", "uint i = first; i < n", "uint i = first + 1; i < n", UNWRITTEN),
    Broken("transpose", "column < rows", "column + 1 < rows", UNWRITTEN),
    Broken("tree_sum", "if (t == 0) {", "if (t == 128) {", UNWRITTEN),
    # Threads that part
    Broken("scan", BARRIER, "if (simdgroup == 0) " + BARRIER, BARRIERS, "if (simdgroup == 0)"),
    Broken("stencil", BARRIER, "if (i >= n) return; " + BARRIER, BARRIERS, "if (i >= n) return;"),
    Broken("softmax", "sum = simd_sum(sum);", "if (lane < 16) sum = simd_sum(sum);", COLLECTIVE, "if (lane < 16)"),
    Broken("w4_dot", "sum = simd_sum(sum);", "if (lane > 0) sum = simd_sum(sum);", COLLECTIVE, "if (lane > 0)"),
    Broken(
        "reverse",
        "float pair = quad_sum(value);",
        "float pair = lane % 4 ? quad_sum(value) : 0;",
        COLLECTIVE,
        "quad_sum(value)",
    ),
    Broken(
        "scan",
        "simd_prefix_inclusive_sum(value)",
        "(t < n ? simd_prefix_inclusive_sum(value) : 0)",
        COLLECTIVE,
        "float running =",
    ),
    # The rest
    Broken("reverse", "ushort(31 - lane)", "ushort(32 - lane)", "missing lane", "float shuffled"),
    Broken("map", "else {", "else { ((device T*)x)[first] = 0;", "write to an input", "((device T*)x)[first]"),
    Broken("w4_dot", "word += 32", "word += 0", "hang"),
    Broken("stencil", "block[66]", "block[8300]", "over 32 KB", "block[8300]"),
    Broken("map", "float4 scaled", "float8 scaled", "compile error", "float8 scaled"),
    Broken("map", "a * float4(v) + b;", "a * float4(v) + c;", "compile error", "float4 scaled"),
    Broken("map", "(x + first);", "(x + first + 1);", "misaligned pointer", "(x + first + 1)"),
]
