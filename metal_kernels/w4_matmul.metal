// w4_matmul: many rows times a packed weight, by products of 8 x 8 matrices.                                          week 2.5
//
//   y[s,m,n] = sum over the s-th share of k: x[m,k] (scale[n,g] q[n,k] + bias[n,g])        g = k / GROUP
//
// Shapes     x [M,K]   w, scales, biases packed, as in w4_matvec   y [SPLITS,M,N] float, or [M,N] of T if SPLITS is 1
// Grid       (n, m, s): a threadgroup of SIMDGROUPS takes ROWS rows and SIMDGROUPS x COLUMNS x 8 outputs; a simdgroup all ROWS of them
// Picture    a block of k    chunk 0: 0 .. 15 | chunk 1: 16 .. 31 | ... | chunk 7: 112 .. 127
//            step i takes    number i of each chunk: the 8 x 8 products need no order of k, only the same one on both sides
//            so a lane reads whole words of w, and unpacks them where they are multiplied
// Scratch    ROWS x 17 x 8 of T: the block of x, its eighths of chunks in turn, so that lanes read different banks
// Numbers    w rounded to T on CUDA, float on Metal; float accumulated; a row's order of additions depends on nothing but K and SPLITS
// Bound by   the matrix units: 2 M N K operations; w is read M / ROWS times, x N / (SIMDGROUPS COLUMNS 8) times
// Reference  tinymlx/ops/linear.py: linear
// Read after w4_matvec.metal; new here: matrix fragments, a block of x that simdgroups share

#include "fragment.metal"

enum { CHUNK = 16, BLOCK = 8 * CHUNK, PITCH = 17 };

// A lane's words of a block of w, those of right's elements: COLUMNS x 8 outputs from first_column on, a chunk each; zero outside of w.
template <int GROUP, int BITS, bool MX, int COLUMNS, typename S>
inline void load_weights(
    Packed<S> w, uint first_column, uint block, uint N, uint K, uint lane, thread uint (&packed)[COLUMNS][2][CHUNK * BITS / 32],
    thread float (&scale)[COLUMNS][2], thread float (&bias)[COLUMNS][2]) {
  const uint words = K * BITS / 32, groups = K / GROUP;
  for (int c = 0; c < COLUMNS; c++) {
    for (int j = 0; j < 2; j++) {
      const uint n = first_column + c * 8 + right_column(lane, j);
      const uint k = block * BLOCK + right_row(lane, j) * CHUNK;
      const bool active = k < K && n < N;
      const device uint* from = w.words + n * words + k * BITS / 32;
      for (int i = 0; i < CHUNK * BITS / 32; i += 2) {
        const uint2 two = active ? *(const device uint2*)(from + i) : uint2{0, 0};
        packed[c][j][i] = two.x;
        packed[c][j][i + 1] = two.y;
      }
      const uint group = n * groups + k / GROUP;
      scale[c][j] = active ? scale_of<MX>(w.scales[group]) : 0.0f;
      bias[c][j] = active && !MX ? float(w.biases[group]) : 0.0f;
    }
  }
}

// Brings ROWS rows of a block of x to all simdgroups, zero outside of x: shared[row * PITCH + half of a chunk * 8 + chunk].
template <typename T, int ROWS, int THREADS>
inline void share_rows(const device T* x, uint first_row, uint block, uint M, uint K, uint thread_index, threadgroup Eight<T>* shared) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index; i < uint(ROWS * BLOCK / 8); i += THREADS) {
    const uint row = i / (BLOCK / 8), eighth = i % (BLOCK / 8), k = block * BLOCK + eighth * 8;
    Eight<T> values;
    if (first_row + row < M && k < K) {
      values = *(const device Eight<T>*)(x + (first_row + row) * K + k);
    } else {
      for (int v = 0; v < 8; v++) {
        values.values[v] = T(0);
      }
    }
    shared[row * PITCH + eighth % (CHUNK / 8) * 8 + eighth / (CHUNK / 8)] = values;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// right[c][i / 2][i % 2] become numbers i of a half of each chunk, as weights: what four steps of multiply_rows take.
template <typename T, int BITS, bool MX, int COLUMNS>
inline void unpack_half(
    thread uint (&packed)[COLUMNS][2][CHUNK * BITS / 32], thread float (&scale)[COLUMNS][2], thread float (&bias)[COLUMNS][2],
    int half_chunk, thread Pair<T> (&right)[COLUMNS][4][2]) {
  const int NUMBERS = 32 / BITS;
  for (int c = 0; c < COLUMNS; c++) {
    for (int i = 0; i < 8; i++) {
      float weight[2];
      for (int j = 0; j < 2; j++) {
        const int at = half_chunk * 8 + i;
        weight[j] = scale[c][j] * number<BITS, MX>(packed[c][j][at / NUMBERS], at % NUMBERS) + bias[c][j];
      }
      right[c][i / 2][i % 2] = pair<T>(weight[0], weight[1]);
    }
  }
}

// Adds to sum[r][c] the products of 16 rows of x and 8 outputs over a half of each chunk: weights unpacked once for all ROWS.
template <typename T, int ROWS, int COLUMNS>
inline void multiply_rows(
    threadgroup Eight<T>* shared, int half_chunk, uint lane, thread Pair<T> (&right)[COLUMNS][4][2],
    thread float (&sum)[ROWS / 16][COLUMNS][2][2]) {
  for (int r = 0; r < ROWS / 16; r++) {
    Eight<T> values[2][2];  // [half of the 16 rows][one of the lane's two columns]
    for (int i = 0; i < 2; i++) {
      const uint row = r * 16 + i * 8 + fragment_row(lane);
      for (int j = 0; j < 2; j++) {
        values[i][j] = shared[row * PITCH + half_chunk * 8 + fragment_column(lane) + j];
      }
    }
    for (int step = 0; step < 4; step++) {
      Pair<T> left[2][2];
      for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 2; k++) {
          left[i][k] = pair<T>(values[i][0].values[step * 2 + k], values[i][1].values[step * 2 + k]);
        }
      }
      for (int c = 0; c < COLUMNS; c++) {
        multiply(sum[r][c], left, right[c][step]);
      }
    }
  }
}

template <typename T, typename Y, int GROUP, int BITS, bool MX, int ROWS, int COLUMNS, int SIMDGROUPS, int SPLITS, typename S>
inline void w4_matmul(
    const device T* x, Packed<S> w, device Y* y, uint M, uint N, uint K, uint3 threadgroup_index, uint simdgroup, uint lane,
    threadgroup Eight<T>* shared) {
  const uint blocks = (K + BLOCK - 1) / BLOCK, first_row = threadgroup_index.y * ROWS;
  const uint first_column = (threadgroup_index.x * SIMDGROUPS + simdgroup) * COLUMNS * 8;
  const uint split = threadgroup_index.z, begin = blocks * split / SPLITS, end = blocks * (split + 1) / SPLITS;
  float sum[ROWS / 16][COLUMNS][2][2];
  for (int r = 0; r < ROWS / 16; r++) {
    for (int c = 0; c < COLUMNS; c++) {
      for (int i = 0; i < 2; i++) {
        sum[r][c][i][0] = 0;
        sum[r][c][i][1] = 0;
      }
    }
  }

  for (uint block = begin; block < end; block++) {
    uint packed[COLUMNS][2][CHUNK * BITS / 32];
    float scale[COLUMNS][2], bias[COLUMNS][2];
    load_weights<GROUP, BITS, MX, COLUMNS>(w, first_column, block, N, K, lane, packed, scale, bias);
    share_rows<T, ROWS, SIMDGROUPS * 32>(x, first_row, block, M, K, simdgroup * 32 + lane, shared);
    for (int half_chunk = 0; half_chunk < 2; half_chunk++) {
      Pair<T> right[COLUMNS][4][2];
      unpack_half<T, BITS, MX, COLUMNS>(packed, scale, bias, half_chunk, right);
      multiply_rows<T, ROWS, COLUMNS>(shared, half_chunk, lane, right, sum);
    }
  }

  for (int r = 0; r < ROWS / 16; r++) {
    for (int c = 0; c < COLUMNS; c++) {
      for (int i = 0; i < 2; i++) {
        const uint m = first_row + r * 16 + i * 8 + fragment_row(lane);
        for (int j = 0; j < 2; j++) {
          const uint n = first_column + c * 8 + fragment_column(lane) + j;
          if (m < M && n < N) {
            y[(split * M + m) * N + n] = Y(sum[r][c][i][j]);
          }
        }
      }
    }
  }
}
