"""The strict pass: snippets that Metal takes must pass, and those it does not must be named at their line."""

import metal_cases
import mlx.core as mx
import pytest

from tinymlx.errors import UserError
from tinymlx.kernels import host
from tinymlx.kernels.host import strict


@pytest.fixture(autouse=True)
def clang():
    try:
        strict.clang()
    except UserError as error:
        pytest.skip(str(error))


def strict_findings(header: str, source: str) -> list[host.Finding]:
    kernel = host.Kernel(
        name="snippet", input_names=["x", "few", "one"], output_names=["y"], header=header, source=source
    )
    return kernel.strict(
        inputs=[mx.zeros(32), mx.zeros(3), mx.array(1.0)],
        template=[("T", mx.float16), ("N", 4), ("F", True)],
        output_shapes=[(32,)],
        output_dtypes=[mx.float32],
    )


@pytest.mark.parametrize("name", metal_cases.CASES)
def test_sound_kernels_pass(name):
    case = metal_cases.CASES[name]()
    assert host.Kernel(**case.kernel).strict(**case.text) == []


GOOD = {
    "deduced pointer": (
        "template <typename P>\nfloat first(P p) { return p[0]; }\n",
        "y[0] = first(x) + first(few) + one;",
    ),
    "vectors": (
        "",
        "float4 v = float4(1.0f, float2(x[0]), 2); vec<T, N> h = vec<T, N>(v.x); v.xy = v.zw; y[0] = v.x + float(h.y);",
    ),
    "scratch": (
        "void put(threadgroup float* s, uint i, thread float& v) { s[i] = v; v = 0; }\n",
        "threadgroup float s[32]; float v = x[0]; put(s, thread_index_in_simdgroup, v); y[0] = s[0];",
    ),
    "struct": (
        "struct Pair {\n  float a, b;\n  float sum() const { return a + b; }\n};\n",
        "Pair p = {x[0], one}; y[0] = p.sum();",
    ),
    "constants": (
        "constant float table[3] = {1, 2, 3};\nconstexpr constant int count = 3;\n",
        "y[0] = table[count - 1];",
    ),
    "casts": ("", "const device uchar* bytes = (const device uchar*)x; y[0] = float(bytes[1]) + as_type<float>(7u);"),
    "control": (
        "",
        "for (int i = 0; i < N; i++) { if (F) continue; switch (i) { case 1: break; } } y[0] = simd_sum(x[0]);",
    ),
    "halves": ("", "half h = 0.5h; bfloat b = bfloat(x[0]); y[0] = float(h) * 2.0f + float(b) + max(T(1), T(h));"),
    "barriers": ("", "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup); y[0] = 1;"),
    "copies of structures": (
        "struct Pair {\n  float a, b;\n};\nPair swapped(Pair p) { return {p.b, p.a}; }\n",
        "Pair p = {x[0], 1}, q; q = swapped(p); auto far = (const device Pair*)x; q = far[1]; y[0] = q.a;",
    ),
    "matrices": (
        "",
        """simdgroup_matrix<float, 8, 8> a, b[2]; b[0] = simdgroup_matrix<float, 8, 8>(0); simdgroup_load(a, x, 8);
simdgroup_multiply_accumulate(b[1], a, a, b[0]); simdgroup_store(b[1], y, 8); y[0] = a.thread_elements()[0];""",
    ),
    "atomics": (
        "void count(threadgroup atomic_uint* c) { atomic_fetch_add_explicit(c, 1u, memory_order_relaxed); }\n",
        "threadgroup metal::atomic_uint c[1]; count(c); y[0] = atomic_load_explicit(c, memory_order_relaxed);",
    ),
    "overloads": (
        "float twice(float v) { return 2 * v; }\nint twice(int v) { return twice(float(v)); }\n",
        "y[0] = twice(3);",
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_metal_takes_passes(name):
    assert strict_findings(*GOOD[name]) == []


# name: (header, source, line of the header or source)
WRONG = {
    "a small input is constant": ("float f(const device float* p) { return p[0]; }\n", "y[0] =\nf(few);", 2),
    "device for threadgroup": ("void f(threadgroup float* p) {}\n", "f(y);", 1),
    "threadgroup for device": ("void f(device float* p) {}\n", "threadgroup float s[4];\nf(s);", 2),
    "thread for device": ("void f(device float* p) {}\n", "float a[2];\nf(a);", 2),
    "device for thread": ("void f(thread float* p) {}\n", "f(y);", 1),
    "cast between spaces": ("", "threadgroup float s[4];\ndevice float* p = (device float*)s;\ny[0] = p[0];", 2),
    "bare pointer": ("float f(float* p) { return p[0]; }\n", "y[0] = 1;", 1),
    "bare local pointer": ("", "y[0] = 1;\nconst float* p = x;", 2),
    "bare reference": ("void f(float& v) { v = 1; }\n", "float a;\nf(a); y[0] = a;", 1),
    "bare template pointer": ("template <typename U>\nU f(const U* p) { return p[0]; }\n", "y[0] = 1;", 2),
    "write to constant": ("", "y[0] = 1;\nfew[0] = 2;", 2),
    "write to an input": ("", "y[0] = 1;\nx[0] = 2;", 2),
    "double": ("", "double d = x[0];\ny[0] = d;", 1),
    "recursion": ("int f(int n) {\n  return n < 2 ? 1 : n * f(n - 1);\n}\n", "y[0] = f(3);", 1),
    "mutual recursion": (
        "int g(int n);\nint f(int n) { return g(n); }\nint g(int n) { return f(n); }\n",
        "y[0] = f(3);",
        2,
    ),
    "virtual": ("struct A {\n  virtual float f() { return 1; }\n};\n", "y[0] = 1;", 2),
    "function pointer": ("float f(float v) { return v; }\n", "float (*p)(float) = f;\ny[0] = p(x[0]);", 1),
    "new": ("", "y[0] = 1;\nthread int* p = new int;", 2),
    "exception": ("", "y[0] = 1;\nthrow 1;", 2),
    "standard library": ("", "y[0] = std::max(x[0], 1.0f);", 1),
    "run-time type": ("struct A { int a; };\n", "y[0] = 1;\nA a; auto b = dynamic_cast<thread A*>(&a);", 2),
    "threadgroup with a value": ("", "threadgroup float s = 1.0f;\ny[0] = s;", 1),
    "threadgroup in a function": ("void f() {\n  threadgroup float s[4];\n  s[0] = 1;\n}\n", "f(); y[0] = 1;", 2),
    "mixed min": ("", "y[0] = min(x[0], 1);", 1),
    "atomic on plain memory": ("", "y[0] = 1;\natomic_fetch_add_explicit(&y[1], 1.0f, memory_order_relaxed);", 2),
    "matrix from thread memory": (
        "",
        "float a[64];\nsimdgroup_matrix<float, 8, 8> m;\nsimdgroup_load(m, a); y[0] = 1;",
        3,
    ),
    "matrix of another type": ("", "simdgroup_matrix<half, 8, 8> m;\nsimdgroup_load(m, x); y[0] = 1;", 2),
    "writable global": ("float counter = 0;\n", "y[0] = counter;", 1),
    "unknown function": ("", "y[0] = sigmoid(x[0]);", 1),
    "variable length": ("", "y[0] = 1;\nfloat a[thread_index_in_simdgroup];", 2),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_metal_does_not_take_is_named(name):
    header, source, line = WRONG[name]
    (finding,) = strict_findings(header, source)
    assert finding.kind == "not Metal" and finding.place.line == line, str(finding)
    assert "\n" not in str(finding)
