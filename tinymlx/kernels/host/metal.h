// What a kernel sees of <metal_stdlib>, written in C++20 for a CPU.
//
// Address spaces are empty words here; compose.py has turned `threadgroup` variables into shared storage, `constant`
// into const, and a swizzle like v.xy into v.swizzle<0, 1>(). No standard header is included, so that `std::` fails as
// it does in Metal. Collective operations hand a value to the runtime and wait until the other lanes have come.
#pragma once

#include "runtime.h"

#define device
#define thread
#define kernel
#define METAL_FUNC inline __attribute__((always_inline))
#define __METAL_HOST__ 1
#ifndef INFINITY
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_inff()
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define FLT_EPSILON __FLT_EPSILON__
#define HALF_MAX 65504.0h
#define INT_MAX __INT_MAX__
#define INT_MIN (-__INT_MAX__ - 1)
#define UINT_MAX (__INT_MAX__ * 2U + 1U)
#define M_PI_F 3.14159265358979323846f
#define M_LN2_F 0.69314718055994530942f
#define M_LOG2E_F 1.44269504088896340736f
#define M_SQRT1_2_F 0.70710678118654752440f
#define assert(condition)
#endif

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef long int64_t;  // `long` in Metal
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef unsigned long uint64_t;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
typedef __fp16 half;  // this compiler has _Float16 in C alone
#else
typedef _Float16 half;
#endif
constexpr half operator""h(long double x) {
  return half(x);
}

// Brain float: the upper half of a float. Two of them give one of them, rounded after every operation.
struct bfloat {
  ushort bits;
  bfloat() = default;
  template <class T>
    requires(__is_same(T, float) || __is_same(T, half) || requires(T x) { x << 1; })
  constexpr bfloat(T x) : bits(rounded(float(x))) {}
  constexpr operator float() const {
    return __builtin_bit_cast(float, uint(bits) << 16);
  }
  static constexpr ushort rounded(float x) {
    uint b = __builtin_bit_cast(uint, x);
    if ((b & 0x7fffffff) > 0x7f800000) return ushort(b >> 16 | 0x40);  // stays not-a-number
    return ushort((b + 0x7fff + (b >> 16 & 1)) >> 16);                  // to nearest, ties to even
  }
};
#define HOST_OPERATOR(op)                                   \
  template <class T>                                        \
    requires(__is_same(T, bfloat))                          \
  constexpr bfloat operator op(T a, T b) {                  \
    return bfloat(float(a) op float(b));                    \
  }                                                         \
  template <class U>                                        \
  constexpr bfloat& operator op##=(bfloat & a, const U& b) { \
    return a = bfloat(float(a) op float(b));                \
  }
HOST_OPERATOR(+) HOST_OPERATOR(-) HOST_OPERATOR(*) HOST_OPERATOR(/)
#undef HOST_OPERATOR
constexpr bfloat operator-(bfloat a) {
  return bfloat(-float(a));
}

namespace metal {
// Type traits

template <class T, T v>
struct integral_constant {
  static constexpr T value = v;
  typedef T value_type;
  constexpr operator T() const { return v; }
};
template <bool v>
using bool_constant = integral_constant<bool, v>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;
template <bool, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  typedef T type;
};
template <bool c, class T = void>
using enable_if_t = typename enable_if<c, T>::type;
template <bool, class A, class B>
struct conditional {
  typedef A type;
};
template <class A, class B>
struct conditional<false, A, B> {
  typedef B type;
};
template <bool c, class A, class B>
using conditional_t = typename conditional<c, A, B>::type;
template <class T>
struct remove_cv {
  typedef T type;
};
template <class T>
struct remove_cv<const T> : remove_cv<T> {};
template <class T>
struct remove_cv<volatile T> : remove_cv<T> {};
template <class T>
using remove_cv_t = typename remove_cv<T>::type;
template <class T>
using remove_const_t = remove_cv_t<T>;
template <class T>
struct remove_reference {
  typedef T type;
};
template <class T>
struct remove_reference<T&> {
  typedef T type;
};
template <class T>
struct remove_reference<T&&> {
  typedef T type;
};
template <class T>
using remove_reference_t = typename remove_reference<T>::type;
template <class T>
using remove_addrspace_t = T;
template <class T>
using decay_t = remove_cv_t<remove_reference_t<T>>;
template <class T>
struct remove_pointer {
  typedef T type;
};
template <class T>
struct remove_pointer<T*> {
  typedef T type;
};
template <class T>
using remove_pointer_t = typename remove_pointer<T>::type;
template <class A, class B>
constexpr bool is_same_v = __is_same(A, B);
template <class A, class B>
struct is_same : bool_constant<__is_same(A, B)> {};
template <class T, class... Us>
constexpr bool is_one_of = (__is_same(remove_cv_t<T>, Us) || ...);
template <class T>
constexpr bool is_floating_point_v = is_one_of<T, float, half, bfloat>;
template <class T>
constexpr bool is_integral_v =
    is_one_of<T, bool, char, signed char, uchar, short, ushort, int, uint, long, ulong, long long, unsigned long long>;
template <class T>
constexpr bool is_arithmetic_v = is_integral_v<T> || is_floating_point_v<T>;
template <class T>
constexpr bool is_signed_v = is_floating_point_v<T> || (is_integral_v<T> && T(-1) < T(1));
template <class T>
constexpr bool is_unsigned_v = is_integral_v<T> && !is_signed_v<T>;
template <class A, class B>
constexpr bool is_convertible_v = requires(A a, void (*take)(B)) { take(a); };
template <class T>
constexpr bool is_pointer_v = false;
template <class T>
constexpr bool is_pointer_v<T*> = true;
#define HOST_TRAIT(name) \
  template <class T>     \
  struct name : bool_constant<name##_v<T>> {};
HOST_TRAIT(is_floating_point)
HOST_TRAIT(is_integral) HOST_TRAIT(is_arithmetic) HOST_TRAIT(is_signed) HOST_TRAIT(is_unsigned) HOST_TRAIT(is_pointer)
#undef HOST_TRAIT
template <class A, class B>
struct is_convertible : bool_constant<is_convertible_v<A, B>> {};
template <class...>
struct _disjunction : false_type {};
template <class A, class... R>
struct _disjunction<A, R...> : bool_constant<A::value || _disjunction<R...>::value> {};
template <class T>
T&& declval();

template <class T>
concept scalar = is_arithmetic_v<T>;
template <class T>
concept floating = is_floating_point_v<T>;
template <class T>
concept integer = is_integral_v<T>;

template <class T>
struct numeric_limits {
  static constexpr bool is_signed = is_signed_v<T>;
  static constexpr int digits = sizeof(T) * 8 - is_signed;
  static constexpr T max() {
    if constexpr (is_same_v<T, bool>) return true;
    else return is_signed ? T(~(1ull << (sizeof(T) * 8 - 1)) & (~0ull >> (64 - sizeof(T) * 8))) : T(~0ull);
  }
  static constexpr T min() { return is_signed ? T(-max() - 1) : T(0); }
  static constexpr T lowest() { return min(); }
  static constexpr T infinity() { return T(0); }
};
#define HOST_LIMITS(T, count, big, small, step)                    \
  template <>                                                      \
  struct numeric_limits<T> {                                       \
    static constexpr bool is_signed = true;                        \
    static constexpr int digits = count;                           \
    static constexpr T max() { return T(big); }                    \
    static constexpr T min() { return T(small); }                  \
    static constexpr T lowest() { return T(-(big)); }              \
    static constexpr T epsilon() { return T(step); }               \
    static constexpr T infinity() { return T(__builtin_inff()); }  \
    static constexpr T quiet_NaN() { return T(__builtin_nanf("")); } \
  };
HOST_LIMITS(float, 24, __FLT_MAX__, __FLT_MIN__, __FLT_EPSILON__)
HOST_LIMITS(half, 11, 65504.0f, 0x1p-14f, 0x1p-10f)
HOST_LIMITS(bfloat, 8, 0x1.fep127f, 0x1p-126f, 0x1p-7f)
#undef HOST_LIMITS

// Vectors

template <class T, int N>
struct vec;
template <class T>
constexpr int width = scalar<T> ? 1 : 0;
template <class T, int N>
constexpr int width<vec<T, N>> = N;

template <class T, int N>
struct storage;
template <class T>
struct storage<T, 2> {
  union {
    T data[2];
    struct { T x, y; };
    struct { T r, g; };
  };
};
template <class T>
struct storage<T, 3> {
  union {
    T data[4];
    struct { T x, y, z; };
    struct { T r, g, b; };
  };
  storage() = default;  // a copy leaves the fourth component alone, which nothing may have written
  constexpr storage(const storage& v) : data{v.data[0], v.data[1], v.data[2]} {}
  constexpr storage& operator=(const storage& v) {
    data[0] = v.data[0], data[1] = v.data[1], data[2] = v.data[2];
    return *this;
  }
};
template <class T>
struct storage<T, 4> {
  union {
    T data[4];
    struct { T x, y, z, w; };
    struct { T r, g, b, a; };
  };
};

template <class V, int... I>
struct SwizzleRef {  // the left side of v.xy = ...
  V& v;
  template <class U>
  constexpr void operator=(const vec<U, sizeof...(I)>& from) {
    int k = 0;
    ((v[I] = from[k++]), ...);
  }
};

// When a kernel runs on MLX's own arrays, vectors are aligned to 8 at most: that is what MLX's allocator on a CPU
// gives, where Metal gives whole pages. A check has buffers of its own and the true alignment.
#ifdef HOST_CHECK
constexpr size_t most_alignment = 64;
#else
constexpr size_t most_alignment = 8;
#endif
constexpr size_t alignment(size_t bytes) { return bytes < most_alignment ? bytes : most_alignment; }

template <class T, int N>
struct alignas(alignment(sizeof(T) * (N == 3 ? 4 : N))) vec : storage<T, N> {
  using storage<T, N>::data;
  vec() = default;
  template <class U>
    requires scalar<U>
  constexpr vec(U s) {
    for (int i = 0; i < N; i++) data[i] = T(s);
  }
  template <class U>
    requires(!is_same_v<T, U>)
  explicit constexpr vec(const vec<U, N>& v) {
    for (int i = 0; i < N; i++) data[i] = T(v[i]);
  }
  template <class A, class... R>
    requires(sizeof...(R) > 0 && (width<A> + ... + width<R>) == N)
  constexpr vec(A first, R... rest) {
    int k = 0;
    put(k, first);
    (put(k, rest), ...);
  }
  template <class U>
  constexpr void put(int& k, U v) {
    if constexpr (scalar<U>) data[k++] = T(v);
    else
      for (int i = 0; i < width<U>; i++) data[k++] = T(v[i]);
  }
  constexpr T& operator[](size_t i) { return data[i]; }
  constexpr const T& operator[](size_t i) const { return data[i]; }
  template <int... I>
  constexpr vec<T, sizeof...(I)> swizzle() const {
    return {data[I]...};
  }
  template <int... I>
  constexpr SwizzleRef<vec, I...> swizzle_ref() {
    return {*this};
  }
};

#define HOST_BINARY(op, R)                                                        \
  template <class T, int N>                                                       \
  constexpr vec<R, N> operator op(const vec<T, N>& a, const vec<T, N>& b) {       \
    vec<R, N> out;                                                                \
    for (int i = 0; i < N; i++) out[i] = R(a[i] op b[i]);                         \
    return out;                                                                   \
  }                                                                               \
  template <class T, int N, scalar U>                                             \
  constexpr vec<R, N> operator op(const vec<T, N>& a, U b) {                      \
    return a op vec<T, N>(b);                                                     \
  }                                                                               \
  template <class T, int N, scalar U>                                             \
  constexpr vec<R, N> operator op(U a, const vec<T, N>& b) {                      \
    return vec<T, N>(a) op b;                                                     \
  }
#define HOST_ARITHMETIC(op)                                     \
  HOST_BINARY(op, T)                                            \
  template <class T, int N, class U>                            \
  constexpr vec<T, N>& operator op##=(vec<T, N>& a, const U& b) { \
    return a = a op b;                                          \
  }
HOST_ARITHMETIC(+) HOST_ARITHMETIC(-) HOST_ARITHMETIC(*) HOST_ARITHMETIC(/) HOST_ARITHMETIC(%)
HOST_ARITHMETIC(&) HOST_ARITHMETIC(|) HOST_ARITHMETIC(^) HOST_ARITHMETIC(<<) HOST_ARITHMETIC(>>)
HOST_BINARY(==, bool) HOST_BINARY(!=, bool) HOST_BINARY(<, bool) HOST_BINARY(<=, bool) HOST_BINARY(>, bool)
HOST_BINARY(>=, bool) HOST_BINARY(&&, bool) HOST_BINARY(||, bool)
#undef HOST_BINARY
#undef HOST_ARITHMETIC
#define HOST_UNARY(op, R)                               \
  template <class T, int N>                             \
  constexpr vec<R, N> operator op(const vec<T, N>& a) { \
    vec<R, N> out;                                      \
    for (int i = 0; i < N; i++) out[i] = R(op a[i]);    \
    return out;                                         \
  }
HOST_UNARY(-, T) HOST_UNARY(~, T) HOST_UNARY(!, bool)
#undef HOST_UNARY

// Packed vectors: the same components and no more
template <class T>
struct triple {
  union {
    T data[3];
    struct { T x, y, z; };
  };
};
template <class T, int N>
struct packed_vec : conditional_t<N == 3, triple<T>, storage<T, N>> {
  using conditional_t<N == 3, triple<T>, storage<T, N>>::data;
  packed_vec() = default;
  constexpr packed_vec(const vec<T, N>& v) {
    for (int i = 0; i < N; i++) data[i] = v[i];
  }
  constexpr operator vec<T, N>() const {
    vec<T, N> out;
    for (int i = 0; i < N; i++) out[i] = data[i];
    return out;
  }
  constexpr T& operator[](size_t i) { return data[i]; }
  constexpr const T& operator[](size_t i) const { return data[i]; }
};

// A value that is the same in all lanes, by the word of the kernel.
template <class T>
struct uniform {
  T value;
  constexpr operator T() const { return value; }
};
template <class T>
constexpr uniform<T> make_uniform(T v) { return {v}; }
#define HOST_UNIFORM(op) \
  template <class T>     \
  constexpr uniform<T> operator op(uniform<T> a, uniform<T> b) { return {T(a.value op b.value)}; }
HOST_UNIFORM(+) HOST_UNIFORM(-) HOST_UNIFORM(*) HOST_UNIFORM(/)
#undef HOST_UNIFORM

template <class T, size_t N>
struct array {
  T data[N];
  constexpr T& operator[](size_t i) { return data[i]; }
  constexpr const T& operator[](size_t i) const { return data[i]; }
  constexpr size_t size() const { return N; }
};
}  // namespace metal

#define HOST_VECTORS(T)                                                             \
  typedef metal::vec<T, 2> T##2; typedef metal::vec<T, 3> T##3; typedef metal::vec<T, 4> T##4; \
  typedef metal::packed_vec<T, 2> packed_##T##2; typedef metal::packed_vec<T, 3> packed_##T##3; \
  typedef metal::packed_vec<T, 4> packed_##T##4;
HOST_VECTORS(bool)
HOST_VECTORS(char) HOST_VECTORS(uchar) HOST_VECTORS(short) HOST_VECTORS(ushort) HOST_VECTORS(int) HOST_VECTORS(uint)
HOST_VECTORS(long) HOST_VECTORS(ulong) HOST_VECTORS(float) HOST_VECTORS(half) HOST_VECTORS(bfloat)
#undef HOST_VECTORS

template <class To, class From>
METAL_FUNC constexpr To as_type(From x) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs two types of one size");
  To out{};
  __builtin_memcpy(static_cast<void*>(&out), &x, sizeof out);
  return out;
}

namespace metal {
// Mathematics. In float, rounded to the type of the argument; on vectors component by component.

template <class F, class T, int N, class... R>
METAL_FUNC auto each(F f, const vec<T, N>& a, const R&... rest) {
  vec<decltype(f(a[0], rest[0]...)), N> out;
  for (int i = 0; i < N; i++) out[i] = f(a[i], rest[i]...);
  return out;
}
#define HOST_MATH1(name, expression)                                      \
  template <floating T>                                                   \
  METAL_FUNC T name(T value) {                                            \
    float x = float(value);                                               \
    return T(expression);                                                 \
  }                                                                       \
  template <integer T> /* an int is taken as a float, as Metal does */    \
  METAL_FUNC float name(T value) {                                        \
    float x = float(value);                                               \
    return expression;                                                    \
  }                                                                       \
  template <class T, int N>                                               \
  METAL_FUNC vec<T, N> name(const vec<T, N>& v) {                         \
    return each([](T x) { return name(x); }, v);                          \
  }
#define HOST_BUILTIN1(name) HOST_MATH1(name, __builtin_##name##f(x))
HOST_BUILTIN1(acos) HOST_BUILTIN1(acosh) HOST_BUILTIN1(asin) HOST_BUILTIN1(asinh) HOST_BUILTIN1(atan)
HOST_BUILTIN1(atanh) HOST_BUILTIN1(ceil) HOST_BUILTIN1(cos) HOST_BUILTIN1(cosh) HOST_BUILTIN1(exp)
HOST_BUILTIN1(exp2) HOST_BUILTIN1(fabs) HOST_BUILTIN1(floor) HOST_BUILTIN1(log)
HOST_BUILTIN1(log10) HOST_BUILTIN1(log2) HOST_BUILTIN1(rint) HOST_BUILTIN1(round) HOST_BUILTIN1(sin) HOST_BUILTIN1(sinh)
HOST_BUILTIN1(sqrt) HOST_BUILTIN1(tan) HOST_BUILTIN1(tanh) HOST_BUILTIN1(trunc)
HOST_MATH1(exp10, __builtin_powf(10.0f, x))
HOST_MATH1(rsqrt, 1.0f / __builtin_sqrtf(x))
HOST_MATH1(fract, __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f))
HOST_MATH1(cospi, __builtin_cosf(M_PI_F * x))
HOST_MATH1(sinpi, __builtin_sinf(M_PI_F * x))
HOST_MATH1(tanpi, __builtin_tanf(M_PI_F * x))
HOST_MATH1(saturate, x != x ? 0.0f : __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f))
HOST_MATH1(sign, x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? x : 0.0f)
#undef HOST_MATH1
#undef HOST_BUILTIN1
#define HOST_MATH2(name, expression)                                         \
  template <floating T>                                                      \
  METAL_FUNC T name(T a, T b) {                                              \
    float x = float(a), y = float(b);                                        \
    return T(expression);                                                    \
  }                                                                          \
  template <class T, int N>                                                  \
  METAL_FUNC vec<T, N> name(const vec<T, N>& a, const vec<T, N>& b) {        \
    return each([](T x, T y) { return name(x, y); }, a, b);                  \
  }
#define HOST_BUILTIN2(name) HOST_MATH2(name, __builtin_##name##f(x, y))
HOST_BUILTIN2(atan2) HOST_BUILTIN2(copysign) HOST_BUILTIN2(fdim) HOST_BUILTIN2(fmax) HOST_BUILTIN2(fmin)
HOST_BUILTIN2(fmod) HOST_BUILTIN2(pow) HOST_BUILTIN2(nextafter)
HOST_MATH2(powr, __builtin_powf(x, y))
HOST_MATH2(step, y < x ? 0.0f : 1.0f)
#undef HOST_MATH2
#undef HOST_BUILTIN2
#define HOST_TEST(name, expression)                            \
  template <floating T>                                        \
  METAL_FUNC bool name(T value) {                              \
    float x = float(value);                                    \
    return expression;                                         \
  }                                                            \
  template <class T, int N>                                    \
  METAL_FUNC vec<bool, N> name(const vec<T, N>& v) {           \
    return each([](T x) { return name(x); }, v);               \
  }
HOST_TEST(isnan, x != x)
HOST_TEST(isinf, __builtin_fabsf(x) == __builtin_inff())
HOST_TEST(isfinite, __builtin_fabsf(x) < __builtin_inff())
HOST_TEST(isnormal, isfinite(x) && __builtin_fabsf(x) >= __FLT_MIN__)
HOST_TEST(signbit, __builtin_signbit(x) != 0)
#undef HOST_TEST

template <scalar T>
METAL_FUNC constexpr T min(T a, T b) {
  if constexpr (floating<T>) return a != a ? b : b != b ? a : b < a ? b : a;
  else return b < a ? b : a;
}
template <scalar T>
METAL_FUNC constexpr T max(T a, T b) {
  if constexpr (floating<T>) return a != a ? b : b != b ? a : a < b ? b : a;
  else return a < b ? b : a;
}
template <scalar T>
METAL_FUNC constexpr T clamp(T x, T low, T high) {
  return min(max(x, low), high);
}
template <scalar T>
METAL_FUNC constexpr T min3(T a, T b, T c) { return min(a, min(b, c)); }
template <scalar T>
METAL_FUNC constexpr T max3(T a, T b, T c) { return max(a, max(b, c)); }
template <scalar T>
METAL_FUNC constexpr T abs(T x) {
  if constexpr (floating<T>) return T(__builtin_fabsf(float(x)));
  else return is_signed_v<T> && x < T(0) ? T(-x) : x;
}
template <scalar T>
METAL_FUNC T select(T a, T b, bool chosen) { return chosen ? b : a; }
template <floating T>
METAL_FUNC T fma(T a, T b, T c) { return T(__builtin_fmaf(float(a), float(b), float(c))); }
template <floating T>
METAL_FUNC T mix(T a, T b, T t) { return T(a + (b - a) * t); }
template <floating T>
METAL_FUNC T smoothstep(T low, T high, T x) {
  T t = clamp(T((x - low) / (high - low)), T(0), T(1));
  return T(t * t * (T(3) - T(2) * t));
}
template <floating T>
METAL_FUNC T ldexp(T x, int k) { return T(__builtin_ldexpf(float(x), k)); }
template <floating T>
METAL_FUNC T frexp(T x, int& k) { return T(__builtin_frexpf(float(x), &k)); }
template <floating T>
METAL_FUNC T modf(T x, T& whole) { return x - (whole = trunc(x)); }
template <floating T>
METAL_FUNC T sincos(T x, T& cosine) { cosine = cos(x); return sin(x); }
template <integer T>
METAL_FUNC T popcount(T x) { return T(__builtin_popcountll(ulong(x) & (~0ul >> (64 - 8 * sizeof(T))))); }
template <integer T>
METAL_FUNC T clz(T x) {
  ulong bits = ulong(x) & (~0ul >> (64 - 8 * sizeof(T)));
  return T(bits ? __builtin_clzll(bits) - (64 - 8 * int(sizeof(T))) : 8 * int(sizeof(T)));
}
template <integer T>
METAL_FUNC T ctz(T x) { return T(x ? __builtin_ctzll(ulong(x)) : 8 * int(sizeof(T))); }
template <integer T>
METAL_FUNC T rotate(T x, T by) {
  typedef conditional_t<sizeof(T) < 4, conditional_t<sizeof(T) == 1, uchar, ushort>,
                        conditional_t<sizeof(T) == 4, uint, ulong>> U;
  uint k = uint(by) % (8 * sizeof(T));
  return T(U(U(x) << k) | (k ? U(U(x) >> (8 * sizeof(T) - k)) : U(0)));
}
template <integer T>
METAL_FUNC T extract_bits(T x, uint offset, uint bits) {
  uint all = 8 * sizeof(T);
  return bits == 0 ? T(0) : T(T(x << (all - bits - offset)) >> (all - bits));
}
template <integer T>
METAL_FUNC T insert_bits(T base, T x, uint offset, uint bits) {
  ulong mask = (bits >= 64 ? ~0ul : (1ul << bits) - 1) << offset;
  return T((ulong(base) & ~mask) | ((ulong(x) << offset) & mask));
}
template <integer T>
METAL_FUNC T reverse_bits(T x) {
  ulong out = 0;
  for (uint i = 0; i < 8 * sizeof(T); i++) out |= (ulong(x) >> i & 1) << (8 * sizeof(T) - 1 - i);
  return T(out);
}
template <integer T>
METAL_FUNC T mulhi(T a, T b) {
  if constexpr (is_signed_v<T>) return T((__int128(a) * b) >> (8 * sizeof(T)));
  else return T(((unsigned __int128)(a)*b) >> (8 * sizeof(T)));
}
template <integer T>
METAL_FUNC T absdiff(T a, T b) { return a > b ? a - b : b - a; }

#define HOST_LIFT2(name)                                               \
  template <class T, int N>                                            \
  METAL_FUNC vec<T, N> name(const vec<T, N>& a, const vec<T, N>& b) {  \
    return each([](T x, T y) { return name(x, y); }, a, b);            \
  }                                                                    \
  template <class T, int N, scalar U>                                  \
  METAL_FUNC vec<T, N> name(const vec<T, N>& a, U b) {                 \
    return name(a, vec<T, N>(b));                                      \
  }
HOST_LIFT2(min) HOST_LIFT2(max) HOST_LIFT2(absdiff) HOST_LIFT2(rotate) HOST_LIFT2(mulhi)
#undef HOST_LIFT2
#define HOST_LIFT3(name)                                                                         \
  template <class T, int N>                                                                      \
  METAL_FUNC vec<T, N> name(const vec<T, N>& a, const vec<T, N>& b, const vec<T, N>& c) {        \
    return each([](T x, T y, T z) { return name(x, y, z); }, a, b, c);                           \
  }                                                                                              \
  template <class T, int N, scalar U>                                                            \
  METAL_FUNC vec<T, N> name(const vec<T, N>& a, U b, U c) {                                      \
    return name(a, vec<T, N>(b), vec<T, N>(c));                                                  \
  }
HOST_LIFT3(clamp) HOST_LIFT3(fma) HOST_LIFT3(min3) HOST_LIFT3(max3)
#undef HOST_LIFT3
template <class T, int N, class U>
METAL_FUNC vec<T, N> mix(const vec<T, N>& a, const vec<T, N>& b, const U& t) { return a + (b - a) * t; }
template <class T, int N>
METAL_FUNC vec<T, N> abs(const vec<T, N>& a) { return each([](T x) { return abs(x); }, a); }
template <class T, int N>
METAL_FUNC vec<T, N> popcount(const vec<T, N>& a) { return each([](T x) { return popcount(x); }, a); }
template <class T, int N>
METAL_FUNC vec<T, N> select(const vec<T, N>& a, const vec<T, N>& b, const vec<bool, N>& chosen) {
  return each([](T x, T y, bool c) { return c ? y : x; }, a, b, chosen);
}
template <int N>
METAL_FUNC bool all(const vec<bool, N>& v) {
  bool out = true;
  for (int i = 0; i < N; i++) out = out && v[i];
  return out;
}
template <int N>
METAL_FUNC bool any(const vec<bool, N>& v) {
  bool out = false;
  for (int i = 0; i < N; i++) out = out || v[i];
  return out;
}
METAL_FUNC bool all(bool v) { return v; }
METAL_FUNC bool any(bool v) { return v; }
template <class T, int N>
METAL_FUNC T dot(const vec<T, N>& a, const vec<T, N>& b) {
  T sum = a[0] * b[0];
  for (int i = 1; i < N; i++) sum += a[i] * b[i];
  return sum;
}
template <class T, int N>
METAL_FUNC T length_squared(const vec<T, N>& v) { return dot(v, v); }
template <class T, int N>
METAL_FUNC T length(const vec<T, N>& v) { return sqrt(dot(v, v)); }
template <class T, int N>
METAL_FUNC T distance(const vec<T, N>& a, const vec<T, N>& b) { return length(a - b); }
template <class T, int N>
METAL_FUNC vec<T, N> normalize(const vec<T, N>& v) { return v * rsqrt(dot(v, v)); }
template <class T>
METAL_FUNC vec<T, 3> cross(const vec<T, 3>& a, const vec<T, 3>& b) {
  return {a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
}
namespace fast {
using namespace metal;
}
namespace precise {
using namespace metal;
}

// Barriers

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
inline void threadgroup_barrier(mem_flags flags, host::Site site = host::Site::here()) {
  host::barrier(host::whole_threadgroup, int(flags), site);
}
inline void simdgroup_barrier(mem_flags flags, host::Site site = host::Site::here()) {
  host::barrier(host::simdgroup, int(flags), site);
}

// Collectives of a simdgroup (32 lanes) and of a quad (4)

template <class T>
inline host::Slots& meet(const T& value, host::Group group, const char* name, host::Site site) {
  static_assert(sizeof(T) <= host::slot_bytes, "too wide for one exchange");
  return host::meet(&value, sizeof(T), group, name, site);
}
// Pairwise, so that a sum of 32 lanes loses no more than a tree does.
template <class T, class F>
inline T reduce(const T& value, host::Group group, const char* name, host::Site site, F f) {
  host::Slots& slots = meet(value, group, name, site);
  if (!slots.reduced) {
    T part[32];
    int n = 0;
    for (int i = 0; i < slots.lanes; i++) part[n++] = *(const T*)slots.lane[i];
    for (; n > 1; n = (n + 1) / 2)
      for (int i = 0; i < (n + 1) / 2; i++) part[i] = 2 * i + 1 < n ? T(f(part[2 * i], part[2 * i + 1])) : part[2 * i];
    *(T*)slots.result = part[0];
    slots.reduced = true;
  }
  return *(const T*)slots.result;
}
template <class T, class F>
inline T prefix(const T& value, T start, bool inclusive, host::Group group, const char* name, host::Site site, F f) {
  host::Slots& slots = meet(value, group, name, site);
  T sum = start;
  for (int i = 0; i < slots.me + inclusive; i++) sum = T(f(sum, *(const T*)slots.lane[i]));
  return sum;
}
// What lane `from` holds. A lane that does not exist gives an undefined value in Metal; here it is reported.
template <class T>
inline T other(const T& value, int from, host::Group group, const char* name, host::Site site) {
  host::Slots& slots = meet(value, group, name, site);
  if (from < 0 || from >= slots.lanes) {
    host::missing_lane(name, from, site);
    return value;
  }
  return *(const T*)slots.lane[from];
}
#define HOST_COLLECTIVES(p, group, size)                                                                        \
  template <class T> inline T p##_sum(T v, host::Site s = host::Site::here()) {                                 \
    return reduce(v, group, #p "_sum", s, [](T a, T b) { return T(a + b); });                                   \
  }                                                                                                             \
  template <class T> inline T p##_product(T v, host::Site s = host::Site::here()) {                             \
    return reduce(v, group, #p "_product", s, [](T a, T b) { return T(a * b); });                               \
  }                                                                                                             \
  template <class T> inline T p##_max(T v, host::Site s = host::Site::here()) {                                 \
    return reduce(v, group, #p "_max", s, [](T a, T b) { return max(a, b); });                                  \
  }                                                                                                             \
  template <class T> inline T p##_min(T v, host::Site s = host::Site::here()) {                                 \
    return reduce(v, group, #p "_min", s, [](T a, T b) { return min(a, b); });                                  \
  }                                                                                                             \
  template <class T> inline T p##_and(T v, host::Site s = host::Site::here()) {                                 \
    return reduce(v, group, #p "_and", s, [](T a, T b) { return T(a & b); });                                   \
  }                                                                                                             \
  template <class T> inline T p##_or(T v, host::Site s = host::Site::here()) {                                  \
    return reduce(v, group, #p "_or", s, [](T a, T b) { return T(a | b); });                                    \
  }                                                                                                             \
  template <class T> inline T p##_xor(T v, host::Site s = host::Site::here()) {                                 \
    return reduce(v, group, #p "_xor", s, [](T a, T b) { return T(a ^ b); });                                   \
  }                                                                                                             \
  inline bool p##_all(bool v, host::Site s = host::Site::here()) {                                              \
    return reduce(v, group, #p "_all", s, [](bool a, bool b) { return a && b; });                               \
  }                                                                                                             \
  inline bool p##_any(bool v, host::Site s = host::Site::here()) {                                              \
    return reduce(v, group, #p "_any", s, [](bool a, bool b) { return a || b; });                               \
  }                                                                                                             \
  template <class T> inline T p##_prefix_inclusive_sum(T v, host::Site s = host::Site::here()) {                \
    return prefix(v, T(0), true, group, #p "_prefix_inclusive_sum", s, [](T a, T b) { return T(a + b); });      \
  }                                                                                                             \
  template <class T> inline T p##_prefix_exclusive_sum(T v, host::Site s = host::Site::here()) {                \
    return prefix(v, T(0), false, group, #p "_prefix_exclusive_sum", s, [](T a, T b) { return T(a + b); });     \
  }                                                                                                             \
  template <class T> inline T p##_prefix_inclusive_product(T v, host::Site s = host::Site::here()) {            \
    return prefix(v, T(1), true, group, #p "_prefix_inclusive_product", s, [](T a, T b) { return T(a * b); });  \
  }                                                                                                             \
  template <class T> inline T p##_prefix_exclusive_product(T v, host::Site s = host::Site::here()) {            \
    return prefix(v, T(1), false, group, #p "_prefix_exclusive_product", s, [](T a, T b) { return T(a * b); }); \
  }                                                                                                             \
  template <class T> inline T p##_broadcast(T v, ushort lane, host::Site s = host::Site::here()) {              \
    return other(v, lane, group, #p "_broadcast", s);                                                           \
  }                                                                                                             \
  template <class T> inline T p##_broadcast_first(T v, host::Site s = host::Site::here()) {                     \
    return other(v, 0, group, #p "_broadcast_first", s);                                                        \
  }                                                                                                             \
  template <class T> inline T p##_shuffle(T v, ushort lane, host::Site s = host::Site::here()) {                \
    return other(v, lane, group, #p "_shuffle", s);                                                             \
  }                                                                                                             \
  template <class T> inline T p##_shuffle_xor(T v, ushort mask, host::Site s = host::Site::here()) {            \
    return other(v, host::lane(group) ^ mask, group, #p "_shuffle_xor", s);                                     \
  }                                                                                                             \
  template <class T> inline T p##_shuffle_down(T v, ushort d, host::Site s = host::Site::here()) {              \
    int from = host::lane(group) + d; /* the upper lanes keep their own, as MLX relies on */                    \
    return other(v, from < size ? from : host::lane(group), group, #p "_shuffle_down", s);                      \
  }                                                                                                             \
  template <class T> inline T p##_shuffle_up(T v, ushort d, host::Site s = host::Site::here()) {                \
    int from = host::lane(group) - d;                                                                           \
    return other(v, from >= 0 ? from : host::lane(group), group, #p "_shuffle_up", s);                          \
  }                                                                                                             \
  template <class T> inline T p##_shuffle_rotate_down(T v, ushort d, host::Site s = host::Site::here()) {       \
    return other(v, (host::lane(group) + d) % size, group, #p "_shuffle_rotate_down", s);                       \
  }                                                                                                             \
  template <class T> inline T p##_shuffle_rotate_up(T v, ushort d, host::Site s = host::Site::here()) {         \
    return other(v, (host::lane(group) + size - d % size) % size, group, #p "_shuffle_rotate_up", s);           \
  }                                                                                                             \
  template <class T>                                                                                            \
  inline T p##_shuffle_and_fill_down(T v, T fill, ushort d, host::Site s = host::Site::here()) {                \
    host::Slots& slots = meet(v, group, #p "_shuffle_and_fill_down", s);                                        \
    int from = slots.me + d;                                                                                    \
    T mine = fill;                                                                                              \
    return from < slots.lanes ? *(const T*)slots.lane[from] : mine;                                             \
  }                                                                                                             \
  template <class T>                                                                                            \
  inline T p##_shuffle_and_fill_up(T v, T fill, ushort d, host::Site s = host::Site::here()) {                  \
    host::Slots& slots = meet(v, group, #p "_shuffle_and_fill_up", s);                                          \
    int from = slots.me - d;                                                                                    \
    return from >= 0 ? *(const T*)slots.lane[from] : fill;                                                      \
  }                                                                                                             \
  inline bool p##_is_first(host::Site = host::Site::here()) { return host::lane(group) == 0; }
HOST_COLLECTIVES(simd, host::simdgroup, 32)
HOST_COLLECTIVES(quad, host::quad, 4)
#undef HOST_COLLECTIVES

struct simd_vote {
  typedef ulong vote_t;
  vote_t votes;
  explicit simd_vote(vote_t v) : votes(v) {}
  explicit operator vote_t() const { return votes; }
  bool all() const { return votes == 0xffffffff; }
  bool any() const { return votes != 0; }
};
inline simd_vote simd_ballot(bool v, host::Site s = host::Site::here()) {
  ulong mine = ulong(v) << host::lane(host::simdgroup);
  return simd_vote(reduce(mine, host::simdgroup, "simd_ballot", s, [](ulong a, ulong b) { return a | b; }));
}
inline simd_vote simd_active_threads_mask(host::Site s = host::Site::here()) { return simd_ballot(true, s); }

// 8x8 matrices of a simdgroup: a lane holds two neighbouring columns of one row

inline int matrix_row(int lane) { return (lane / 4 & 4) + lane / 2 % 4; }
inline int matrix_column(int lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }

template <class T, int Rows = 8, int Columns = 8>
struct simdgroup_matrix {
  static_assert(Rows == 8 && Columns == 8, "a simdgroup_matrix is 8x8");
  vec<T, 2> elements;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) {
    int lane = host::lane(host::simdgroup), r = matrix_row(lane), c = matrix_column(lane);
    elements = vec<T, 2>(r == c ? diagonal : T(0), r == c + 1 ? diagonal : T(0));
  }
  vec<T, 2>& thread_elements() { return elements; }
  const vec<T, 2>& thread_elements() const { return elements; }
};
typedef simdgroup_matrix<float> simdgroup_float8x8;
typedef simdgroup_matrix<half> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat> simdgroup_bfloat8x8;
template <class T, int R = 8, int C = 8>
inline simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) {
  simdgroup_matrix<T, R, C> m;
  m.elements = vec<T, 2>(v);
  return m;
}
template <class T, int R = 8, int C = 8>
inline simdgroup_matrix<T, R, C> make_diagonal_simdgroup_matrix(T v) { return simdgroup_matrix<T, R, C>(v); }

// A load and a store exchange nothing; that all lanes take part matters to a check alone.
METAL_FUNC void together(const char* name, host::Site site) {
#ifdef HOST_CHECK
  meet(0, host::simdgroup, name, site);
#endif
}
template <class T, class U>
METAL_FUNC void simdgroup_load(simdgroup_matrix<T>& m, const U* from, ulong stride = 8, ulong2 origin = 0,
                               bool transposed = false, host::Site s = host::Site::here()) {
  static_assert(is_same_v<T, U>, "simdgroup_load takes memory of the matrix's own type");
  together("simdgroup_load", s);
  int lane = host::lane(host::simdgroup), r = matrix_row(lane), c = matrix_column(lane);
  from += origin.y * stride + origin.x;
  for (int i = 0; i < 2; i++) m.elements[i] = transposed ? from[(c + i) * stride + r] : from[r * stride + c + i];
}
template <class T>
METAL_FUNC void simdgroup_store(const simdgroup_matrix<T>& m, T* to, ulong stride = 8, ulong2 origin = 0,
                                bool transposed = false, host::Site s = host::Site::here()) {
  together("simdgroup_store", s);
  int lane = host::lane(host::simdgroup), r = matrix_row(lane), c = matrix_column(lane);
  to += origin.y * stride + origin.x;
  for (int i = 0; i < 2; i++) (transposed ? to[(c + i) * stride + r] : to[r * stride + c + i]) = m.elements[i];
}
template <class D, class A, class B>
inline void multiply(simdgroup_matrix<D>& d, const simdgroup_matrix<A>& a, const simdgroup_matrix<B>& b, float2 sum,
                     const char* name, host::Site s) {
  float4 mine(float(a.elements[0]), float(a.elements[1]), float(b.elements[0]), float(b.elements[1]));
  host::Slots& slots = meet(mine, host::simdgroup, name, s);
  if (slots.lanes != 32) host::missing_lane(name, slots.lanes, s);
  float(*left)[8] = (float(*)[8])slots.result, (*right)[8] = left + 8;
  if (!slots.reduced) {
    for (int i = 0; i < slots.lanes; i++) {
      const float* from = (const float*)slots.lane[i];
      for (int k = 0; k < 2; k++) {
        left[matrix_row(i)][matrix_column(i) + k] = from[k];
        right[matrix_row(i)][matrix_column(i) + k] = from[2 + k];
      }
    }
    slots.reduced = true;
  }
  int r = matrix_row(slots.me), c = matrix_column(slots.me);
  float x = sum.x, y = sum.y;
  for (int k = 0; k < 8; k++) {
    x += left[r][k] * right[k][c];
    y += left[r][k] * right[k][c + 1];
  }
  d.elements = vec<D, 2>(D(x), D(y));
}
template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D>& d, const simdgroup_matrix<A>& a,
                                          const simdgroup_matrix<B>& b, const simdgroup_matrix<C>& c,
                                          host::Site s = host::Site::here()) {
  multiply(d, a, b, float2(float(c.elements[0]), float(c.elements[1])), "simdgroup_multiply_accumulate", s);
}
template <class D, class A, class B>
inline void simdgroup_multiply(simdgroup_matrix<D>& d, const simdgroup_matrix<A>& a, const simdgroup_matrix<B>& b,
                               host::Site s = host::Site::here()) {
  multiply(d, a, b, float2(0.0f), "simdgroup_multiply", s);
}

// Atomics. One thread runs at a time, so that a plain update is atomic; the runtime hears of it for the sake of races.

enum memory_order { memory_order_relaxed };
template <class T>
struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;
typedef atomic<bool> atomic_bool;

template <class T, class F>
HOST_UNCHECKED __attribute__((noinline)) T exchanged(volatile atomic<T>* a, bool writes, F f) {
  T before = a->value;
  if (writes) a->value = f(before);
  return before;
}
template <class T, class F>
METAL_FUNC T update(volatile atomic<T>* a, bool reads, bool writes, F f) {
  host::atomic_access((const void*)a, sizeof(T), reads, writes);
  return exchanged(a, writes, f);
}
template <class T>
METAL_FUNC T atomic_load_explicit(const volatile atomic<T>* a, memory_order) {
  return update((volatile atomic<T>*)a, true, false, [](T x) { return x; });
}
template <class T, class U>
METAL_FUNC void atomic_store_explicit(volatile atomic<T>* a, U v, memory_order) {
  update(a, false, true, [v](T) { return T(v); });
}
template <class T, class U>
METAL_FUNC T atomic_exchange_explicit(volatile atomic<T>* a, U v, memory_order) {
  return update(a, true, true, [v](T) { return T(v); });
}
template <class T, class U>
METAL_FUNC bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* a, T* expected, U v, memory_order,
                                                      memory_order) {
  T want = *expected;
  T before = update(a, true, true, [=](T x) { return __builtin_memcmp(&x, &want, sizeof x) ? x : T(v); });
  *expected = before;
  return __builtin_memcmp(&before, &want, sizeof before) == 0;
}
#define HOST_ATOMIC(name, expression)                                                            \
  template <class T, class U>                                                                    \
  METAL_FUNC T atomic_fetch_##name##_explicit(volatile atomic<T>* a, U value, memory_order) {    \
    T v = T(value);                                                                              \
    return update(a, true, true, [v](T x) { return T(expression); });                            \
  }
HOST_ATOMIC(add, x + v)
HOST_ATOMIC(sub, x - v) HOST_ATOMIC(and, x & v) HOST_ATOMIC(or, x | v) HOST_ATOMIC(xor, x ^ v)
HOST_ATOMIC(max, max(x, v)) HOST_ATOMIC(min, min(x, v))
#undef HOST_ATOMIC
}  // namespace metal

namespace host {
// An attribute of the kernel's signature in the type that the signature gives it: uint, ushort, uint2, uint3.
template <class A>
inline A attribute(const Axes& v) {
  if constexpr (metal::scalar<A>) return A(v.x);
  else if constexpr (metal::width<A> == 2) return A(v.x, v.y);
  else return A(v.x, v.y, v.z);
}
}  // namespace host

// A kernel's own structs: as for vectors.
#define alignas(bytes) alignas(::metal::alignment(bytes))
