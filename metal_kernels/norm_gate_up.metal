// norm_gate_up: rms_norm of a few rows, times the two packed weights of SwiGLU, and SwiGLU, in one launch.          week 2.5
//
//   h = weight * x * rsqrt(mean(x^2) + eps)          y = silu(h Wg^T + dg) * (h Wu^T + du)          silu(a) = a / (1 + exp(-a))
//
// Shapes     x [M,K]   Wg, Wu [N,K] packed, as in w4_matvec   dg, du, y [M,N]
// Grid       as w4_matvec; a tile is OUTPUTS / 2 rows of Wg and the same rows of Wu
// Picture    total[0 .. OUTPUTS/2) are of the gate, total[OUTPUTS/2 .. OUTPUTS) of up: both halves meet in one lane
// Scratch    SIMDGROUPS x (OUTPUTS + 1) M floats
// Numbers    as w4_matvec; gate and up are rounded to T, as the unfused layer does
// Bound by   bandwidth: the two weights
// Reference  tinymlx/ops/norm.py: rms_norm, tinymlx/ops/linear.py: linear, tinymlx/ops/mlp.py: swiglu
// Read after norm_qkv.metal; new here: two weights in one tile

#include "dot.metal"

template <typename T, bool MATRIX, int M, int GROUP, int BITS, bool MX, bool DELTA, int OUTPUTS, int SPLITS, typename S, typename V,
    typename E>
inline void norm_gate_up(
    const device T* x, V weight, E eps, Packed<S> gate, Packed<S> up, const device T* dg, const device T* du, device T* y, uint K, uint N,
    uint threadgroup_index, uint tiles, uint simdgroup, uint lane, threadgroup float* partial) {
  const int HALF = OUTPUTS / 2;
  const uint tile = threadgroup_index * tiles + simdgroup / SPLITS, split = simdgroup % SPLITS;
  const uint first = tile * HALF;
  dot_tile<MATRIX, M, GROUP, BITS, MX, true, OUTPUTS>(
      x, weight, gate, first, up, first, K, N, split, SPLITS, simdgroup, lane, partial);
  for (uint i = split * 32 + lane; i < uint(HALF * M); i += SPLITS * 32) {
    const uint n = i % HALF, m = i / HALF, at = m * N + first + n;
    if (first + n < N) {
      float g = output_of<M, OUTPUTS, true>(partial, simdgroup - split, SPLITS, n, m, K, eps);
      float u = output_of<M, OUTPUTS, true>(partial, simdgroup - split, SPLITS, n + HALF, m, K, eps);
      if (DELTA) {
        g += float(dg[at]);
        u += float(du[at]);
      }
      g = float(T(g));
      y[at] = T(float(T(g / (1 + exp(-g)))) * float(T(u)));
    }
  }
}
