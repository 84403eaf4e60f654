// Each simdgroup takes itself for the tile's first: where the second stores outputs too, it adds its own sums to the next tile's.
//
// caught by: TestTask4Outputs::test_two_simdgroups_share_k

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
      float value = output_of<M, OUTPUTS, NORM>(partial, simdgroup, SPLITS, n, m, K, eps);
      if (DELTA) {
        value += float(delta[at]);
      }
      // Rounded before the addition, as the unfused layer does.
      y[at] = RESIDUAL ? T(float(T(value)) + float(residual[at])) : T(value);
    }
  }
}
