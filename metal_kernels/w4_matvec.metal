// w4_matvec: a few rows times a packed weight, each packed word read once for all rows.                             week 2.4
//
//   y[m,n] = sum_k h[m,k] (scale[n,g] q[n,k] + bias[n,g]) + delta[m,n] + residual[m,n]        g = k / GROUP,  h = x or rms_norm(x)
//
// Shapes     x [M,K]   w [N,K*BITS/32] uint32   scales, biases [N,K/GROUP]   delta, residual, y [M,N]   weight [K]   eps [1]
// Grid       TILES x SPLITS simdgroups a threadgroup: a tile of OUTPUTS neighbouring n, whose k is split among SPLITS simdgroups
// Picture    include/dot.metal; the norm's factor is the same for all k of a row, so that it is applied at the end
// Scratch    SIMDGROUPS x (OUTPUTS + 1) M floats: what the simdgroups of a tile add up, and their sums of squares
// Numbers    x, y of T, scales and biases of S, float accumulated; a row's order of additions depends on nothing but K and SPLITS
// Bound by   bandwidth: N K BITS / 8 bytes of w, 2 N K / GROUP sizeof(S) of scales and biases
// Reference  tinymlx/ops/linear.py: linear
// Read after rms_norm.metal; new here: unpacking, a tile of outputs, a split sum

#include "dot.metal"

template <typename T, bool MATRIX, int M, int GROUP, int BITS, bool MX, bool NORM, bool DELTA, bool RESIDUAL, int OUTPUTS, int SPLITS,
    typename S, typename V, typename E>
inline void w4_matvec(
    const device T* x, V weight, E eps, Packed<S> w, const device T* delta, const device T* residual, device T* y, uint K, uint N,
    uint threadgroup_index, uint tiles, uint simdgroup, uint lane, threadgroup float* partial) {
  const uint tile = threadgroup_index * tiles + simdgroup / SPLITS, split = simdgroup % SPLITS;
  const uint first = tile * OUTPUTS;
  dot_tile<MATRIX, M, GROUP, BITS, MX, NORM, OUTPUTS>(
      x, weight, w, first, w, first + OUTPUTS / 2, K, N, split, SPLITS, simdgroup, lane, partial);
  for (uint i = split * 32 + lane; i < uint(OUTPUTS * M); i += SPLITS * 32) {
    const uint n = i % OUTPUTS, m = i / OUTPUTS, at = m * N + first + n;
    if (first + n < N) {
      float value = output_of<M, OUTPUTS, NORM>(partial, simdgroup - split, SPLITS, n, m, K, eps);
      if (DELTA) {
        value += float(delta[at]);
      }
      // Rounded before the addition, as the unfused layer does.
      y[at] = RESIDUAL ? T(float(T(value)) + float(residual[at])) : T(value);
    }
  }
}
