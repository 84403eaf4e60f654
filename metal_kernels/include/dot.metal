// A simdgroup's share of up to 16 rows times a packed weight: what w4_matvec, norm_qkv and norm_gate_up are made of.
//
//   k     0 .. 31 | 32 .. 63 | ... | 992 .. 1023 | 1024 ..      a lane takes 32 of 1024 numbers at a time, which lie in one group;
//   lane     0    |    1     | ... |     31      |   0          of SPLITS simdgroups each takes every SPLITS-th block of 1024

#include "dot_matrix.metal"

// Adds to total[n][m] the products of row m of x and HALF rows of `a` from a_row on, then HALF of `b` from b_row on; behind the last row
// its numbers again. With NORM x is multiplied by `weight` first, and squares[m] is the sum of x^2.
template <int M, int GROUP, int BITS, bool MX, bool NORM, int HALF, typename X, typename V, typename S>
inline void dot_rows(
    X x, V weight, Packed<S> a, uint a_row, Packed<S> b, uint b_row, uint K, uint N, uint split, uint splits, uint lane,
    thread float (&total)[2 * HALF][M], thread float (&squares)[M]) {
  const int VECTORS = BITS / 4, NUMBERS = 32 / BITS, SHARERS = GROUP / 32;  // lanes that lie in one group
  const uint words = K * BITS / 32, groups = K / GROUP, sharer = lane % SHARERS;
  for (int n = 0; n < 2 * HALF; n++) {
    for (int m = 0; m < M; m++) {
      total[n][m] = 0;
    }
  }
  for (int m = 0; m < M; m++) {
    squares[m] = 0;
  }

  for (uint block = split * 1024; block < K && a_row < N; block += splits * 1024) {  // a tile behind the last has nothing to read
    const bool active = block + lane * 32 < K;
    const uint k = active ? block + lane * 32 : 0;  // a lane without numbers takes zeros times the first of x
    uint4 packed[2 * HALF][VECTORS];
    float scale[2 * HALF], bias[2 * HALF];
    for (int n = 0; n < 2 * HALF; n++) {  // all loads first: they are under way while the first is waited for
      const Packed<S> from = n < HALF ? a : b;
      const uint row = min(n < HALF ? a_row + n : b_row + (n - HALF), N - 1);
      for (int v = 0; v < VECTORS; v++) {
        packed[n][v] = active ? *(const device uint4*)(from.words + row * words + k * BITS / 32 + 4 * v) : uint4{0, 0, 0, 0};
      }
      const uint group = row * groups + k / GROUP;
      if (SHARERS == 1 || MX) {
        scale[n] = active ? scale_of<MX>(from.scales[group]) : 0.0f;
        bias[n] = active && !MX ? float(from.biases[group]) : 0.0f;
      } else {  // one lane of a group reads the scale, the next the bias
        scale[n] = active && sharer < 2 ? float((sharer == 0 ? from.scales : from.biases)[group]) : 0.0f;
      }
    }
    float products[2 * HALF][M], sums[M];
    for (int m = 0; m < M; m++) {
      sums[m] = 0;
      for (int n = 0; n < 2 * HALF; n++) {
        products[n][m] = 0;
      }
    }
    for (int eight = 0; eight < 4; eight++) {
      float q[2 * HALF][8], weights[8];
      for (int n = 0; n < 2 * HALF; n++) {
        for (int i = 0; i < 8; i++) {
          const int at = eight * (8 / NUMBERS) + i / NUMBERS;
          const uint4 four = packed[n][at / 4];
          const uint word = at % 4 == 0 ? four.x : at % 4 == 1 ? four.y : at % 4 == 2 ? four.z : four.w;
          q[n][i] = number<BITS, MX>(word, i % NUMBERS);
        }
      }
      if (NORM) {
        load8(weight + k + eight * 8, weights);
      }
      for (int m = 0; m < M; m++) {
        float values[8];
        load8(x + m * K + k + eight * 8, values);
        for (int i = 0; i < 8; i++) {
          if (NORM) {
            squares[m] += active ? values[i] * values[i] : 0.0f;
            values[i] *= weights[i];
          }
          sums[m] += values[i];
        }
        for (int n = 0; n < 2 * HALF; n++) {
          for (int i = 0; i < 8; i++) {
            products[n][m] += q[n][i] * values[i];
          }
        }
      }
    }
    for (int n = 0; n < 2 * HALF; n++) {
      if (SHARERS > 1 && !MX) {  // as late as this: it waits for the numbers
        bias[n] = simd_shuffle(scale[n], ushort(lane - sharer + 1));
        scale[n] = simd_shuffle(scale[n], ushort(lane - sharer));
      }
      for (int m = 0; m < M; m++) {
        total[n][m] += scale[n] * products[n][m] + bias[n] * sums[m];
      }
    }
  }
}

// What simdgroup `split` adds to the tile's products, where all its simdgroups find it: partial[simdgroup][n * M + m], squares behind them. A
// tile is OUTPUTS / 2 rows of `a` from a_row on and OUTPUTS / 2 of `b` from b_row on; MATRIX: by the
// matrix units, OUTPUTS is 16 or 32.
template <bool MATRIX, int M, int GROUP, int BITS, bool MX, bool NORM, int OUTPUTS, typename T, typename V, typename S>
inline void dot_tile(
    const device T* x, V weight, Packed<S> a, uint a_row, Packed<S> b, uint b_row, uint K, uint N, uint split, uint splits, uint simdgroup,
    uint lane, threadgroup float* partial) {
  threadgroup float* mine = partial + simdgroup * (OUTPUTS * M + M);
  if (MATRIX) {
    dot_matrix<T, M, GROUP, BITS, MX, NORM, MATRIX ? OUTPUTS : 16>(x, weight, a, a_row, b, b_row, K, N, split, splits, lane, mine);
  } else {
    float total[OUTPUTS][M], squares[M];
    dot_rows<M, GROUP, BITS, MX, NORM, OUTPUTS / 2>(x, weight, a, a_row, b, b_row, K, N, split, splits, lane, total, squares);
    for (int n = 0; n < OUTPUTS; n++) {
      for (int m = 0; m < M; m++) {
        const float sum = simd_sum(total[n][m]);
        if (lane == 0) {
          mine[n * M + m] = sum;
        }
      }
    }
    for (int m = 0; NORM && m < M; m++) {
      const float sum = simd_sum(squares[m]);
      if (lane == 0) {
        mine[OUTPUTS * M + m] = sum;
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Output n of row m: what the tile's `splits` simdgroups from `first` on have shared.
template <int M, int OUTPUTS, bool NORM, typename E>
inline float output_of(threadgroup float* partial, uint first, uint splits, int n, int m, uint K, E eps) {
  float sum = 0, squares = 0;
  for (uint split = 0; split < splits; split++) {
    threadgroup float* of_split = partial + (first + split) * (OUTPUTS * M + M);
    sum += of_split[n * M + m];
    if (NORM) {
      squares += of_split[OUTPUTS * M + m];
    }
  }
  return NORM ? sum * rsqrt(squares / float(K) + float(eps[0])) : sum;
}
