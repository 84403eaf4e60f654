// silu(g) is not rounded before it is multiplied, as if one layer made both.
//
// caught by: TestTask2NormGateUp::test_each_step_is_rounded

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
      y[at] = T(g / (1 + exp(-g)) * float(T(u)));
    }
  }
}
