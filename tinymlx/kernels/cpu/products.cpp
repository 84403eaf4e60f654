// Rows of float times packed weights on a CPU: what the `host` routes run. Vectors of 8 floats, which the compiler maps to AVX, AVX-512 or NEON.
//
//   y[m,n] = sum_k h[m,k] (scale[n,g] q[n,k] + bias[n,g]) + residual[m,n]        g = k / group,  h = x or rms_norm(x)
//
// A step takes 8 words: lane j of a vector has word j, and number i of each word is cut out with one AND where it stands, 2^(BITS i) times
// too large. x is put in that order once for all outputs, divided by 2^(BITS i): exact, both. So 8 numbers cost an AND, a conversion, and
// for each row a multiplication and addition. A row's order of additions depends on nothing but K.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "floats.h"
#include "pool.h"

namespace {

enum Kind : int32_t { FLOAT = 0, HALF = 1, BFLOAT = 2 };

float number(const void* from, size_t at, int32_t kind) {
  if (kind == FLOAT) return ((const float*)from)[at];
  const uint32_t bits = ((const uint16_t*)from)[at];
  float value;
  const uint32_t wide = kind == BFLOAT ? bits << 16 : (bits & 0x7fff) << 13;
  std::memcpy(&value, &wide, 4);
  if (kind == BFLOAT) return value;
  return (bits & 0x8000 ? -0x1p112f : 0x1p112f) * value;  // half's exponent moved to float's; exact for subnormals too
}

}  // namespace

struct Weight {
  const uint32_t* words;  // [N, K * bits / 32]
  const void *scales, *biases;  // [N, K / group] of `kind`
  const float* residual;  // [rows, N] or null
  float* y;               // [rows, N]
  int64_t N;
  int32_t group, bits, kind;
};

namespace {

// x in the order of the words, and its sums over groups.
struct Input {
  std::unique_ptr<Floats[]> ordered;  // [rows][steps][numbers of a word]
  std::unique_ptr<float[]> sums;      // [groups][rows]
  int64_t rows, steps, groups;
};

template <int BITS>
Input order(const float* x, const float* norm, float eps, int64_t rows, int64_t K, int64_t group, Pool& pool) {
  constexpr int NUMBERS = 32 / BITS, STEP = 8 * NUMBERS;
  Input in;
  in.rows = rows, in.steps = (K + STEP - 1) / STEP, in.groups = K / group;
  in.ordered.reset(new Floats[rows * in.steps * NUMBERS]);
  in.sums.reset(new float[rows * in.groups + 8]());
  pool.run(rows, [&](int64_t m) {
    std::vector<float> normed(norm ? K : 0);
    const float* row = x + m * K;
    if (norm) {
      rms_norm(row, norm, eps, K, normed.data());
      row = normed.data();
    }
    for (int64_t s = 0; s < in.steps; s++) {
      float factor = 1;
      for (int i = 0; i < NUMBERS; i++) {
        Floats& to = in.ordered[(m * in.steps + s) * NUMBERS + i];
        for (int j = 0; j < 8; j++) {
          const int64_t k = s * STEP + j * NUMBERS + i;
          to[j] = k < K ? row[k] * (i == NUMBERS - 1 ? 1 : factor) : 0;  // the last number is shifted down
        }
        factor /= 1 << BITS;
      }
    }
    for (int64_t g = 0; g < in.groups; g++) {
      float sum = 0;
      for (int64_t k = g * group; k < (g + 1) * group; k++) sum += row[k];
      in.sums[g * rows + m] = sum;
    }
  });
  return in;
}

// OUTPUTS neighbouring n from `first` on, whose scales and biases are given, for ROWS rows from `row` on.
template <int BITS, int ROWS, int OUTPUTS>
void tile(
    const Input& in, const Weight& w, const float* scales, const float* biases, int64_t K, int64_t row, int64_t first) {
  constexpr int NUMBERS = 32 / BITS, STEP = 8 * NUMBERS, MASK = (1 << BITS) - 1;
  const int64_t words = K * BITS / 32;
  Floats total[OUTPUTS][ROWS] = {};
  for (int64_t s = 0; s < in.steps; s++) {
    Words packed[OUTPUTS];
    const bool whole = (s + 1) * 8 <= words;
    for (int n = 0; n < OUTPUTS; n++) {
      const uint32_t* from = w.words + (first + n) * words + s * 8;
      if (whole) {
        std::memcpy(&packed[n], from, 32);
      } else {
        packed[n] = Words{};
        std::memcpy(&packed[n], from, (words - s * 8) * 4);
      }
    }
    Floats products[OUTPUTS][ROWS] = {};
    const Floats* values = in.ordered.get() + (row * in.steps + s) * NUMBERS;
#pragma GCC unroll 8
    for (int i = 0; i < NUMBERS; i++) {
#pragma GCC unroll 8
      for (int n = 0; n < OUTPUTS; n++) {
        const Words bits = i == NUMBERS - 1 ? packed[n] >> (32 - BITS) : packed[n] & (uint32_t)(MASK << (BITS * i));
        const Floats q = __builtin_convertvector((Ints)bits, Floats);
#pragma GCC unroll 8
        for (int m = 0; m < ROWS; m++) products[n][m] += q * values[m * in.steps * NUMBERS + i];
      }
    }
    for (int n = 0; n < OUTPUTS; n++) {
      const float* of_row = scales + n * in.groups;
      Floats scale;
      if (w.group >= STEP) {
        scale = Floats{} + of_row[s * STEP / w.group];
      } else {  // two groups of 32
        const float one = of_row[2 * s], two = whole ? of_row[2 * s + 1] : 0;
        scale = Floats{one, one, one, one, two, two, two, two};
      }
      for (int m = 0; m < ROWS; m++) total[n][m] += scale * products[n][m];
    }
  }
  for (int n = 0; n < OUTPUTS; n++) {
    Floats biased = {};  // a lane a row: alone or beside others, a row adds up alike
    for (int64_t g = 0; g < in.groups; g++) {
      Floats sums;
      std::memcpy(&sums, in.sums.get() + g * in.rows + row, 32);
      biased += biases[n * in.groups + g] * sums;
    }
    for (int m = 0; m < ROWS; m++) {
      const int64_t at = (row + m) * w.N + first + n;
      const float sum = add(total[n][m]) + biased[m];
      w.y[at] = w.residual ? sum + w.residual[at] : sum;
    }
  }
}

// All rows for outputs first to last: their numbers stay in the first cache meanwhile.
template <int BITS>
void share(const Input& in, const Weight& w, int64_t K, int64_t first, int64_t last) {
  const int64_t numbers = (last - first) * in.groups;
  std::vector<float> scales(numbers), biases(numbers);
  for (int64_t i = 0; i < numbers; i++) {
    scales[i] = number(w.scales, first * in.groups + i, w.kind);
    biases[i] = number(w.biases, first * in.groups + i, w.kind);
  }
  const auto pass = [&]<int ROWS>(int64_t row) {
    constexpr int OUTPUTS = ROWS == 1 ? 4 : 2;
    int64_t n = first;
    const auto of = [&](const std::vector<float>& numbers) { return numbers.data() + (n - first) * in.groups; };
    for (; n + OUTPUTS <= last; n += OUTPUTS) tile<BITS, ROWS, OUTPUTS>(in, w, of(scales), of(biases), K, row, n);
    for (; n < last; n++) tile<BITS, ROWS, 1>(in, w, of(scales), of(biases), K, row, n);
  };
  int64_t row = 0;
  for (; row + 4 <= in.rows; row += 4) pass.template operator()<4>(row);
  for (; row < in.rows; row++) pass.template operator()<1>(row);
}

}  // namespace

// x, and if it is to be normed `norm`: [rows, K], [K]. The weights are packed alike: bits 4 or 8, groups of 32, 64 or 128.
extern "C" void packed_products(
    const float* x, const float* norm, float eps, int64_t rows, int64_t K, const Weight* weights, int32_t count, int32_t threads) {
  Pool& pool = Pool::of_process(threads);
  const int bits = weights[0].bits;
  const Input in = bits == 4 ? order<4>(x, norm, eps, rows, K, weights[0].group, pool)
                             : order<8>(x, norm, eps, rows, K, weights[0].group, pool);
  constexpr int64_t PIECE = 16;
  int64_t pieces = 0;
  for (int32_t i = 0; i < count; i++) pieces += (weights[i].N + PIECE - 1) / PIECE;
  pool.run(pieces, [&](int64_t piece) {
    const Weight* w = weights;
    for (; piece >= (w->N + PIECE - 1) / PIECE; w++) piece -= (w->N + PIECE - 1) / PIECE;
    const int64_t first = piece * PIECE, last = std::min(first + PIECE, w->N);
    if (bits == 4) share<4>(in, *w, K, first, last);
    else share<8>(in, *w, K, first, last);
  });
}

// gate becomes silu(gate) * up, `count` numbers each.
extern "C" void swiglu(float* gate, const float* up, int64_t count, int32_t threads) {
  constexpr int64_t PIECE = 4096;
  Pool::of_process(threads).run((count + PIECE - 1) / PIECE, [&](int64_t piece) {
    for (int64_t i = piece * PIECE; i < std::min((piece + 1) * PIECE, count); i += 8) {
      const size_t bytes = std::min<int64_t>(8, count - i) * 4;
      Floats g = {}, u = {};
      std::memcpy(&g, gate + i, bytes);
      std::memcpy(&u, up + i, bytes);
      g = g / (1.0f + exponential(-g)) * u;
      std::memcpy(gate + i, &g, bytes);
    }
  });
}
