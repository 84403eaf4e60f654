// Each simdgroup of a tile makes and stores all its outputs: right, but twice the work.
//
// caught by: TestTask4Outputs::test_all_is_stored_once

template <typename T, bool MATRIX, int M, int GROUP, int BITS, bool MX, bool NORM, bool DELTA, bool RESIDUAL, int OUTPUTS, int SPLITS,
    typename S, typename V, typename E>
inline void w4_matvec(
    const device T* x, V weight, E eps, Packed<S> w, const device T* delta, const device T* residual, device T* y, uint K, uint N,
    uint threadgroup_index, uint tiles, uint simdgroup, uint lane, threadgroup float* partial) {
  const uint tile = threadgroup_index * tiles + simdgroup / SPLITS, split = simdgroup % SPLITS;
  const uint first = tile * OUTPUTS;
  dot_tile<MATRIX, M, GROUP, BITS, MX, NORM, OUTPUTS>(
      x, weight, w, first, w, first + OUTPUTS / 2, K, N, split, SPLITS, simdgroup, lane, partial);
  for (uint i = lane; i < uint(OUTPUTS * M); i += 32) {
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
