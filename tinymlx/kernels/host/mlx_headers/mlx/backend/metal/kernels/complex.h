// In the place of MLX's file of this name, which overloads by address space; a CPU has but one.
#pragma once
#include <metal_stdlib>
#include "mlx/backend/metal/kernels/bf16.h"
using namespace metal;

template <typename T>
struct complex_t {
  typedef T value_type;
  T real, imag;
  constexpr complex_t(T real, T imag) : real(real), imag(imag) {}
  constexpr complex_t() : real(0), imag(0) {}
  template <scalar U>
  constexpr complex_t(U x) : real(T(x)), imag(0) {}
  template <typename U>
  explicit constexpr complex_t(complex_t<U> x) : real(T(x.real)), imag(T(x.imag)) {}
  constexpr complex_t(vec<T, 2> v) : real(v.x), imag(v.y) {}
  constexpr operator vec<T, 2>() const { return vec<T, 2>(real, imag); }
  template <scalar U>
  explicit constexpr operator U() const { return U(real); }
};
typedef complex_t<float> complex64_t;
template <typename T>
constexpr bool is_complex_v = false;
template <typename T>
constexpr bool is_complex_v<complex_t<T>> = true;

template <typename T>
constexpr complex_t<T> operator-(complex_t<T> a) { return {-a.real, -a.imag}; }
template <typename T>
constexpr complex_t<T> operator+(complex_t<T> a, complex_t<T> b) { return {a.real + b.real, a.imag + b.imag}; }
template <typename T>
constexpr complex_t<T> operator-(complex_t<T> a, complex_t<T> b) { return {a.real - b.real, a.imag - b.imag}; }
template <typename T>
constexpr complex_t<T> operator*(complex_t<T> a, complex_t<T> b) {
  return {a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
}
template <typename T>
constexpr complex_t<T> operator/(complex_t<T> a, complex_t<T> b) {
  T n = b.real * b.real + b.imag * b.imag;
  return {(a.real * b.real + a.imag * b.imag) / n, (a.imag * b.real - a.real * b.imag) / n};
}
template <typename T>
constexpr bool operator==(complex_t<T> a, complex_t<T> b) { return a.real == b.real && a.imag == b.imag; }
