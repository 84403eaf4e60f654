// norm_qkv: rms_norm of a few rows, times the three packed weights of attention, in one launch.                    week 2.5
//
//   h = weight * x * rsqrt(mean(x^2) + eps)          q = h Wq^T + dq      k = h Wk^T + dk      v = h Wv^T + dv
//
// Shapes     x [M,K]   Wq [NQ,K]   Wk, Wv [NK,K] packed, as in w4_matvec   q, dq [M,NQ]   k, v, dk, dv [M,NK]
// Grid       as w4_matvec; the tiles of q come first, then those of k, then those of v
// Picture    tile    0 .. NQ/OUTPUTS - 1 | .. NK/OUTPUTS - 1 | .. NK/OUTPUTS - 1      the branch is the same for a whole simdgroup
// Scratch    SIMDGROUPS x (OUTPUTS + 1) M floats
// Numbers    as w4_matvec; the norm is not rounded to T before the products
// Bound by   bandwidth: the three weights
// Reference  tinymlx/ops/norm.py: rms_norm, tinymlx/ops/linear.py: linear
// Read after w4_matvec.metal; new here: one launch over several buffers

#include "dot.metal"

// Whose outputs a tile makes, 0, 1, 2 for q, k, v, and which is its first; one behind the last tile gets outputs that v has not.
template <int OUTPUTS>
inline uint2 part_of(uint tile, uint NQ, uint NK) {
  const uint of_q = (NQ + OUTPUTS - 1) / OUTPUTS, of_k = (NK + OUTPUTS - 1) / OUTPUTS;
  const uint which = tile < of_q ? 0 : tile < of_q + of_k ? 1 : 2;
  return uint2{which, (tile - (which == 0 ? 0 : which == 1 ? of_q : of_q + of_k)) * OUTPUTS};
}

// One simdgroup's share of a tile, of SPLITS that make it together.
template <typename T, bool MATRIX, int M, int GROUP, int BITS, bool MX, bool DELTA, int OUTPUTS, int SPLITS, typename S, typename V,
    typename E>
inline void norm_qkv(
    const device T* x, V weight, E eps, Packed<S> wq, Packed<S> wk, Packed<S> wv, const device T* dq, const device T* dk,
    const device T* dv, device T* q, device T* k, device T* v, uint K, uint NQ, uint NK, uint threadgroup_index, uint tiles,
    uint simdgroup, uint lane, threadgroup float* partial) {
  const uint tile = threadgroup_index * tiles + simdgroup / SPLITS, split = simdgroup % SPLITS;
  const uint2 part = part_of<OUTPUTS>(tile, NQ, NK);
  const uint which = part.x, first = part.y;
  const Packed<S> w = which == 0 ? wq : which == 1 ? wk : wv;
  const device T* delta = which == 0 ? dq : which == 1 ? dk : dv;
  device T* y = which == 0 ? q : which == 1 ? k : v;
  const uint N = which == 0 ? NQ : NK;

  dot_tile<MATRIX, M, GROUP, BITS, MX, true, OUTPUTS>(
      x, weight, w, first, w, first + OUTPUTS / 2, K, N, split, SPLITS, simdgroup, lane, partial);
  for (uint i = split * 32 + lane; i < uint(OUTPUTS * M); i += SPLITS * 32) {
    const uint n = i % OUTPUTS, m = i / OUTPUTS, at = m * N + first + n;
    if (first + n < N) {
      const float value = output_of<M, OUTPUTS, true>(partial, simdgroup - split, SPLITS, n, m, K, eps);
      y[at] = T(DELTA ? value + float(delta[at]) : value);
    }
  }
}
