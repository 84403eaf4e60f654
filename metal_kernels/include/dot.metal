// A simdgroup's share of up to 16 rows times a packed weight: what w4_matvec, norm_qkv and norm_gate_up are made of.
//
//   k     0 .. 31 | 32 .. 63 | ... | 992 .. 1023 | 1024 ..      a lane takes 32 of 1024 numbers at a time, which lie in one group;
//   lane     0    |    1     | ... |     31      |   0          of SPLITS simdgroups each takes every SPLITS-th block of 1024

#include "dot_matrix.metal"

// A lane's 32 numbers from k on of a row, and of their scale and bias what it has to read: of GROUP / 32 lanes in one group the first
// reads the scale and the next the bias, both into `scale`. A lane that is not active reads nothing and gets zeros.
template <int GROUP, int BITS, bool MX, typename S>
inline void load_share(
    Packed<S> w, uint row, uint K, uint k, uint lane, bool active, thread uint4 (&packed)[BITS / 4], thread float& scale,
    thread float& bias) {
  const uint sharer = lane % (GROUP / 32), group = row * (K / GROUP) + k / GROUP;
  for (int v = 0; v < BITS / 4; v++) {
    packed[v] = active ? *(const device uint4*)(w.words + row * (K * BITS / 32) + k * BITS / 32 + 4 * v) : uint4{0, 0, 0, 0};
  }
  if (GROUP == 32) {
    scale = active ? scale_of<MX>(w.scales[group]) : 0.0f;
    bias = active && !MX ? float(w.biases[group]) : 0.0f;
  } else {
    scale = active && sharer < 2 ? float((sharer == 0 ? w.scales : w.biases)[group]) : 0.0f;
  }
}

// After load_share: scale and bias of its group to every lane.
template <int GROUP>
inline void exchange_scales(uint lane, thread float& scale, thread float& bias) {
  const uint sharer = lane % (GROUP / 32);
  if (GROUP > 32) {
    bias = simd_shuffle(scale, ushort(lane - sharer + 1));
    scale = simd_shuffle(scale, ushort(lane - sharer));
  }
}

// products[n][m] = the sum of q x over a lane's 32 numbers from k on, q those of packed[n] and x those of row m; sums[m] = the sum of x.
// With NORM x is multiplied by `weight` first, and its square is added to squares[m] where the lane is active.
template <int M, int BITS, bool MX, bool NORM, int OUTPUTS, typename X, typename V>
inline void multiply_share(
    X x, V weight, uint K, uint k, bool active, thread uint4 (&packed)[OUTPUTS][BITS / 4], thread float (&products)[OUTPUTS][M],
    thread float (&sums)[M], thread float (&squares)[M]) {
  for (int m = 0; m < M; m++) {
    sums[m] = 0;
    for (int n = 0; n < OUTPUTS; n++) {
      products[n][m] = 0;
    }
  }
  for (int eight = 0; eight < 4; eight++) {
    float q[OUTPUTS][8], weights[8];
    for (int n = 0; n < OUTPUTS; n++) {
      unpack8<BITS, MX>(packed[n], eight, q[n]);
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
      for (int n = 0; n < OUTPUTS; n++) {
        for (int i = 0; i < 8; i++) {
          products[n][m] += q[n][i] * values[i];
        }
      }
    }
  }
}

// total[n][m] = a lane's share of the products of row m of x and HALF rows of `a` from a_row on, then HALF of `b` from b_row on; behind the
// last row its numbers again. With NORM x is multiplied by `weight` first, and squares[m] is the lane's sum of x^2.
template <int M, int GROUP, int BITS, bool MX, bool NORM, int HALF, typename X, typename V, typename S>
inline void dot_rows(
    X x, V weight, Packed<S> a, uint a_row, Packed<S> b, uint b_row, uint K, uint N, uint split, uint splits, uint lane,
    thread float (&total)[2 * HALF][M], thread float (&squares)[M]) {
  for (int m = 0; m < M; m++) {
    squares[m] = 0;
    for (int n = 0; n < 2 * HALF; n++) {
      total[n][m] = 0;
    }
  }
  for (uint block = split * 1024; block < K && a_row < N; block += splits * 1024) {  // a tile behind the last has nothing to read
    const bool active = block + lane * 32 < K;
    const uint k = active ? block + lane * 32 : 0;  // a lane without numbers takes zeros times the first of x
    uint4 packed[2 * HALF][BITS / 4];
    float scale[2 * HALF], bias[2 * HALF], products[2 * HALF][M], sums[M];
    for (int n = 0; n < 2 * HALF; n++) {  // all loads first: they are under way while the first is waited for
      const uint row = min(n < HALF ? a_row + n : b_row + (n - HALF), N - 1);
      load_share<GROUP, BITS, MX>(n < HALF ? a : b, row, K, k, lane, active, packed[n], scale[n], bias[n]);
    }
    multiply_share<M, BITS, MX, NORM, 2 * HALF>(x, weight, K, k, active, packed, products, sums, squares);
    for (int n = 0; n < 2 * HALF; n++) {
      exchange_scales<GROUP>(lane, scale[n], bias[n]);  // as late as this: it waits for the numbers
      for (int m = 0; m < M; m++) {
        total[n][m] += scale[n] * products[n][m] + bias[n] * sums[m];
      }
    }
  }
}

// mine[n * M + m] = the sum of total[n][m] over the simdgroup's lanes.
template <int COUNT, int M>
inline void store_sums(thread float (&total)[COUNT][M], uint lane, threadgroup float* mine) {
  for (int n = 0; n < COUNT; n++) {
    for (int m = 0; m < M; m++) {
      const float sum = simd_sum(total[n][m]);
      if (lane == 0) {
        mine[n * M + m] = sum;
      }
    }
  }
}

// What simdgroup `split` adds to the tile's products, where all its simdgroups find it: partial[simdgroup][n * M + m], squares behind
// them. A tile is OUTPUTS / 2 rows of `a` from a_row on and OUTPUTS / 2 of `b` from b_row on; MATRIX: by the matrix units, OUTPUTS is 16
// or 32.
template <bool MATRIX, int M, int GROUP, int BITS, bool MX, bool NORM, int OUTPUTS, typename T, typename V, typename S>
inline void dot_tile(
    const device T* x, V weight, Packed<S> a, uint a_row, Packed<S> b, uint b_row, uint K, uint N, uint split, uint splits, uint simdgroup,
    uint lane, threadgroup float* partial) {
  threadgroup float* mine = partial + simdgroup * (OUTPUTS * M + M);
  if (MATRIX) {
    dot_matrix<T, M, GROUP, BITS, MX, NORM, MATRIX ? OUTPUTS : 16>(x, weight, a, a_row, b, b_row, K, N, split, splits, lane, mine);
  } else {
    float total[OUTPUTS][M], squares[1][M];
    dot_rows<M, GROUP, BITS, MX, NORM, OUTPUTS / 2>(x, weight, a, a_row, b, b_row, K, N, split, splits, lane, total, squares[0]);
    store_sums(total, lane, mine);
    if (NORM) {
      store_sums(squares, lane, mine + OUTPUTS * M);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// The sum of number `at` over the `splits` simdgroups from `first` on, each of which has stored PLACES numbers.
template <int PLACES>
inline float sum_of_splits(threadgroup float* partial, uint first, uint splits, int at) {
  float sum = 0;
  for (uint split = 0; split < splits; split++) {
    sum += partial[(first + split) * PLACES + at];
  }
  return sum;
}

// Output n of row m: what the tile's `splits` simdgroups from `first` on have stored.
template <int M, int OUTPUTS, bool NORM, typename E>
inline float output_of(threadgroup float* partial, uint first, uint splits, int n, int m, uint K, E eps) {
  const float sum = sum_of_splits<OUTPUTS * M + M>(partial, first, splits, n * M + m);
  return NORM ? sum * rsqrt(sum_of_splits<OUTPUTS * M + M>(partial, first, splits, OUTPUTS * M + m) / float(K) + float(eps[0])) : sum;
}
