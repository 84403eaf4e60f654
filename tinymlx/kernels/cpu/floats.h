// Eight floats at a time: the compiler maps them to AVX, AVX-512 or NEON.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(32)));

inline Floats load(const float* from) {
  Floats value;
  std::memcpy(&value, from, 32);
  return value;
}
inline void store(float* to, Floats value) { std::memcpy(to, &value, 32); }

inline float add(Floats t) { return ((t[0] + t[4]) + (t[1] + t[5])) + ((t[2] + t[6]) + (t[3] + t[7])); }

// e^x to 2 units in the last place: x = n ln 2 + r, a polynomial in r (Cephes, expf), and n added to the exponent.
inline Floats exponential(Floats x) {
  const Floats low = Floats{} - 87.0f, high = Floats{} + 88.0f;
  const Ints beyond = x > high;
  x = x < low ? low : beyond ? high : x;
  const Floats shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to a whole number
  const Floats n = shifted - 12582912.0f;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = Floats{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  p *= (Floats)((__builtin_convertvector(n, Ints) + 127) << 23);
  return beyond ? Floats{} + __builtin_inff() : p;
}

inline float dot(const float* a, const float* b, int64_t count) {
  Floats lanes = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) lanes += load(a + i) * load(b + i);
  float sum = add(lanes);
  for (; i < count; i++) sum += a[i] * b[i];
  return sum;
}

inline void rms_norm(const float* x, const float* weight, float eps, int64_t K, float* y) {
  const float inverse = 1 / std::sqrt(dot(x, x, K) / K + eps);
  for (int64_t k = 0; k < K; k++) y[k] = weight[k] * (x[k] * inverse);
}

}  // namespace
