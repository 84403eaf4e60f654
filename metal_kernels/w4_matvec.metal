// w4_matvec: up to 16 rows times a weight of 4-bit numbers in groups, each packed word read once for all rows.      week 2.4
//
//   y[m,n] = sum_k x[m,k] (scale[n,g] q[n,k] + bias[n,g])        g = k / GROUP,  q in 0..15
//
// Shapes     x [M,K]   w [N,K/8] uint32   scales, biases [N,K/GROUP]   y [M,N]
// Grid       one simdgroup for OUTPUTS neighbouring n; SIMDGROUPS of them a threadgroup, which share nothing
// Picture    k     0 .. 31 | 32 .. 63 | ... | 992 .. 1023 | 1024 ..      a lane takes 32 of 1024 numbers at a time: 16 bytes of w,
//            lane     0    |    1     | ... |     31      |   0          which lie in one group
// Scratch    none
// Numbers    x, y of T, scales and biases of S, float accumulated; a row's order of additions depends on nothing but K
// Bound by   bandwidth: N K / 2 bytes of w, 2 N K / GROUP sizeof(S) of scales and biases
// Reference  tinymlx/ops/linear.py: linear
// Read after rms_norm.metal; new here: unpacking, a tile of outputs

#include "load.metal"

// A nibble becomes a float without a conversion, which is slow: sixteen bits up, behind the bits of 128.0f, it reads 128 + q.
inline float nibble(uint word, int i) { return as_type<float>(((word >> (4 * i)) & 15u) << 16 | 0x43000000u) - 128.0f; }

template <typename T, typename S, int M, int GROUP, int OUTPUTS, typename X, typename W, typename B>
inline void w4_matvec(X x, W w, B scales, B biases, device T* y, int K, int N, uint first, uint lane) {
  const uint words = K / 8, groups = K / GROUP;
  float total[OUTPUTS][M];
  for (int n = 0; n < OUTPUTS; n++) {
    for (int m = 0; m < M; m++) {
      total[n][m] = 0;
    }
  }

  for (uint k = lane * 32; k < uint(K); k += 1024) {
    uint4 packed[OUTPUTS];
    float scale[OUTPUTS], bias[OUTPUTS];
    for (int n = 0; n < OUTPUTS; n++) {  // all loads first: they are under way while the first is waited for
      const uint row = min(first + n, uint(N) - 1);  // behind the last output its numbers again, not to be written
      packed[n] = *(const device uint4*)(w + row * words + k / 8);
      scale[n] = float(scales[row * groups + k / GROUP]);
      bias[n] = float(biases[row * groups + k / GROUP]);
    }
    for (int quarter = 0; quarter < 4; quarter++) {
      float weights[OUTPUTS][8];
      for (int n = 0; n < OUTPUTS; n++) {
        const uint word = quarter == 0 ? packed[n].x : quarter == 1 ? packed[n].y : quarter == 2 ? packed[n].z : packed[n].w;
        for (int i = 0; i < 8; i++) {
          weights[n][i] = scale[n] * nibble(word, i) + bias[n];
        }
      }
      for (int m = 0; m < M; m++) {
        float values[8];
        load8(x + m * K + k + quarter * 8, values);
        for (int n = 0; n < OUTPUTS; n++) {
          for (int i = 0; i < 8; i++) {
            total[n][m] += weights[n][i] * values[i];
          }
        }
      }
    }
  }

  for (int n = 0; n < OUTPUTS; n++) {
    for (int m = 0; m < M; m++) {
      const float sum = simd_sum(total[n][m]);
      if (lane == 0 && first + n < uint(N)) {
        y[m * N + first + n] = T(sum);
      }
    }
  }
}
