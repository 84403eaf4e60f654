// What the strict pass (strict.py) lets a kernel see: real address spaces, from C++ for OpenCL, and Metal's functions
// as declarations. Nothing is compiled to code.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define device __global
#define threadgroup __local
#define thread __private
#define METAL_FUNC inline
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define M_PI_F 3.14159265f
#define M_LN2_F 0.69314718f
#define M_LOG2E_F 1.44269504f
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define INT_MAX __INT_MAX__
#define UINT_MAX (__INT_MAX__ * 2U + 1U)

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
typedef ulong size_t;
typedef long ptrdiff_t;
typedef __bf16 bfloat;
typedef bfloat bfloat16_t;
typedef half float16_t;

namespace metal {
template <class T, int N>
using vec = T __attribute__((ext_vector_type(N)));
}
#define VECTORS(T) typedef metal::vec<T, 2> T##2; typedef metal::vec<T, 3> T##3; typedef metal::vec<T, 4> T##4;
VECTORS(char) VECTORS(uchar) VECTORS(short) VECTORS(ushort) VECTORS(int) VECTORS(uint) VECTORS(long) VECTORS(ulong)
VECTORS(float) VECTORS(half) VECTORS(bfloat)
template <class To, class... From>
To construct(From...);  // float4(a, b), which strict.py writes so
template <class To, class From>
To as_type(From);

namespace metal {
template <bool c, class A, class B>
struct conditional { typedef A type; };
template <class A, class B>
struct conditional<false, A, B> { typedef B type; };
template <bool c, class A, class B>
using conditional_t = typename conditional<c, A, B>::type;
template <bool, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> { typedef T type; };
template <bool c, class T = void>
using enable_if_t = typename enable_if<c, T>::type;
template <class A, class B>
constexpr __constant bool is_same_v = __is_same(A, B);
template <class T>
struct numeric_limits {
  static constexpr T max() { return T(0); }
  static constexpr T min() { return T(0); }
  static constexpr T lowest() { return T(0); }
  static constexpr T infinity() { return T(0); }
};

#define MATH1(name) \
  template <class T> T name(T);
MATH1(acos) MATH1(acosh) MATH1(asin) MATH1(asinh) MATH1(atan) MATH1(atanh) MATH1(ceil) MATH1(cos) MATH1(cosh)
MATH1(exp) MATH1(exp2) MATH1(exp10) MATH1(fabs) MATH1(floor) MATH1(log) MATH1(log10) MATH1(log2) MATH1(rint)
MATH1(round) MATH1(sin) MATH1(sinh) MATH1(sqrt) MATH1(tan) MATH1(tanh) MATH1(trunc) MATH1(rsqrt) MATH1(fract)
MATH1(saturate) MATH1(sign) MATH1(abs) MATH1(popcount) MATH1(clz) MATH1(ctz) MATH1(reverse_bits) MATH1(normalize)
#define MATH2(name) \
  template <class T> T name(T, T);
MATH2(atan2) MATH2(copysign) MATH2(fdim) MATH2(fmax) MATH2(fmin) MATH2(fmod) MATH2(pow) MATH2(powr) MATH2(step)
MATH2(min) MATH2(max) MATH2(rotate) MATH2(mulhi) MATH2(absdiff)
#define MATH3(name) \
  template <class T> T name(T, T, T);
MATH3(fma) MATH3(clamp) MATH3(mix) MATH3(smoothstep) MATH3(min3) MATH3(max3)
template <class T, class C> T select(T, T, C);
template <class T> bool isnan(T);
template <class T> bool isinf(T);
template <class T> bool isfinite(T);
template <class T> bool all(T);
template <class T> bool any(T);
template <class T> T ldexp(T, int);
template <class T> T extract_bits(T, uint, uint);
template <class T, int N> T dot(vec<T, N>, vec<T, N>);
template <class T, int N> T length(vec<T, N>);
namespace fast { using namespace metal; }
namespace precise { using namespace metal; }

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

#define COLLECTIVES(p) \
  template <class T> T p##_sum(T); template <class T> T p##_product(T); template <class T> T p##_max(T); \
  template <class T> T p##_min(T); template <class T> T p##_and(T); template <class T> T p##_or(T); \
  template <class T> T p##_xor(T); bool p##_all(bool); bool p##_any(bool); bool p##_is_first(); \
  template <class T> T p##_prefix_inclusive_sum(T); template <class T> T p##_prefix_exclusive_sum(T); \
  template <class T> T p##_broadcast(T, ushort); template <class T> T p##_broadcast_first(T); \
  template <class T> T p##_shuffle(T, ushort); template <class T> T p##_shuffle_xor(T, ushort); \
  template <class T> T p##_shuffle_down(T, ushort); template <class T> T p##_shuffle_up(T, ushort); \
  template <class T> T p##_shuffle_rotate_down(T, ushort); \
  template <class T> T p##_shuffle_rotate_up(T, ushort); \
  template <class T> T p##_shuffle_and_fill_down(T, T, ushort); \
  template <class T> T p##_shuffle_and_fill_up(T, T, ushort);
COLLECTIVES(simd)
COLLECTIVES(quad)

template <class T, int R, int C>
struct simdgroup_matrix {
  vec<T, 2> elements;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T);
  thread vec<T, 2>& thread_elements();
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
template <class T, int R, int C> simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T);
template <class T, int R, int C> simdgroup_matrix<T, R, C> make_diagonal_simdgroup_matrix(T);
#define IN_SPACE(space)                                                                                     \
  template <class T>                                                                                        \
  void simdgroup_load(thread simdgroup_matrix<T, 8, 8>&, const space T*, ulong = 8, ulong2 = 0, bool = false); \
  template <class T>                                                                                        \
  void simdgroup_store(thread const simdgroup_matrix<T, 8, 8>&, space T*, ulong = 8, ulong2 = 0, bool = false);
IN_SPACE(device)
IN_SPACE(threadgroup)
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>&, thread const simdgroup_matrix<A, 8, 8>&,
                                   thread const simdgroup_matrix<B, 8, 8>&, thread const simdgroup_matrix<C, 8, 8>&);
template <class D, class A, class B>
void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>&, thread const simdgroup_matrix<A, 8, 8>&,
                        thread const simdgroup_matrix<B, 8, 8>&);

enum memory_order { memory_order_relaxed };
template <class T>
struct atomic { T value; };
#define atomic_int metal_atomic_int  // OpenCL has types of these names, which `using namespace metal` would not hide
#define atomic_uint metal_atomic_uint
#define atomic_float metal_atomic_float
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
#define ATOMIC(space, name) \
  template <class T, class U> T atomic_##name##_explicit(volatile space atomic<T>*, U, memory_order);
#define ATOMICS(space)                                                                                             \
  template <class T> T atomic_load_explicit(const volatile space atomic<T>*, memory_order);                        \
  template <class T, class U> void atomic_store_explicit(volatile space atomic<T>*, U, memory_order);              \
  template <class T, class U>                                                                                      \
  bool atomic_compare_exchange_weak_explicit(volatile space atomic<T>*, thread T*, U, memory_order, memory_order); \
  ATOMIC(space, exchange) ATOMIC(space, fetch_add) ATOMIC(space, fetch_sub) ATOMIC(space, fetch_and)               \
  ATOMIC(space, fetch_or) ATOMIC(space, fetch_xor) ATOMIC(space, fetch_max) ATOMIC(space, fetch_min)
ATOMICS(device)
ATOMICS(threadgroup)
}  // namespace metal
using namespace metal;
