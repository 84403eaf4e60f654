// Takes the sums of the threadgroup's first simdgroups, whichever tile it makes.
//
// caught by: TestTask1NormQkv::test_against_float64

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
      const float value = output_of<M, OUTPUTS, true>(partial, 0, SPLITS, n, m, K, eps);
      y[at] = T(DELTA ? value + float(delta[at]) : value);
    }
  }
}
