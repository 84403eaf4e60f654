// All 32 lanes store the sum that each of them has: right, but 32 stores to one place.
//
// caught by: TestTask4Outputs::test_all_is_stored_once

template <int COUNT, int M>
inline void store_sums(thread float (&total)[COUNT][M], uint lane, threadgroup float* mine) {
  for (int n = 0; n < COUNT; n++) {
    for (int m = 0; m < M; m++) {
      mine[n * M + m] = simd_sum(total[n][m]);
    }
  }
}
