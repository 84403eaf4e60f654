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

template <typename T, typename Y, int GROUP, int BITS, bool MX, int ROWS, int COLUMNS, int SIMDGROUPS, int SPLITS, typename S>
inline void w4_matmul(
    const device T* x, Packed<S> w, device Y* y, uint M, uint N, uint K, uint3 threadgroup_index, uint simdgroup, uint lane,
    threadgroup Eight<T>* shared) {
  const int CHUNK = 16, BLOCK = 8 * CHUNK, WORDS = CHUNK * BITS / 32, NUMBERS = 32 / BITS, PITCH = 17;
  const uint words = K * BITS / 32, groups = K / GROUP, blocks = (K + BLOCK - 1) / BLOCK;
  const uint first_row = threadgroup_index.y * ROWS;
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
    uint packed[COLUMNS][2][WORDS];
    float scale[COLUMNS][2], bias[COLUMNS][2];
    for (int c = 0; c < COLUMNS; c++) {
      for (int j = 0; j < 2; j++) {
        const uint n = first_column + c * 8 + right_column(lane, j);
        const uint k = block * BLOCK + right_row(lane, j) * CHUNK;
        const bool active = k < K && n < N;
        const device uint* from = w.words + n * words + k * BITS / 32;
        for (int i = 0; i < WORDS; i += 2) {
          const uint2 two = active ? *(const device uint2*)(from + i) : uint2{0, 0};
          packed[c][j][i] = two.x;
          packed[c][j][i + 1] = two.y;
        }
        const uint group = n * groups + k / GROUP;
        scale[c][j] = active ? scale_of<MX>(w.scales[group]) : 0.0f;
        bias[c][j] = active && !MX ? float(w.biases[group]) : 0.0f;
      }
    }

    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = simdgroup * 32 + lane; i < uint(ROWS * BLOCK / 8); i += SIMDGROUPS * 32) {
      const uint row = i / (BLOCK / 8), eighth = i % (BLOCK / 8), k = block * BLOCK + eighth * 8;
      Eight<T> values;
      if (first_row + row < M && k < K) {
        values = *(const device Eight<T>*)(x + (first_row + row) * K + k);
      } else {
        for (int v = 0; v < 8; v++) {
          values.values[v] = T(0);
        }
      }
      shared[row * PITCH + eighth % (CHUNK / 8) * 8 + eighth / (CHUNK / 8)] = values;  // [row][half of a chunk][chunk]
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    for (int part = 0; part < CHUNK / 8; part++) {
      Pair<T> right[COLUMNS][4][2];
      for (int c = 0; c < COLUMNS; c++) {
        for (int i = 0; i < 8; i++) {
          float weight[2];
          for (int j = 0; j < 2; j++) {
            const int at = part * 8 + i;
            weight[j] = scale[c][j] * number<BITS, MX>(packed[c][j][at / NUMBERS], at % NUMBERS) + bias[c][j];
          }
          right[c][i / 2][i % 2] = pair<T>(weight[0], weight[1]);
        }
      }
      for (int r = 0; r < ROWS / 16; r++) {
        Eight<T> values[2][2];  // [half of the 16 rows][one of the lane's two columns]
        for (int i = 0; i < 2; i++) {
          const uint row = r * 16 + i * 8 + fragment_row(lane);
          for (int j = 0; j < 2; j++) {
            values[i][j] = shared[row * PITCH + part * 8 + fragment_column(lane) + j];
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
