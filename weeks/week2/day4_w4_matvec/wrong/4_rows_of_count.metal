// mine has M numbers for each n, not COUNT: numbers of two outputs fall on one place.
//
// caught by: TestTask4Outputs::test_nine_rows_and_nine_outputs

template <int COUNT, int M>
inline void store_sums(thread float (&total)[COUNT][M], uint lane, threadgroup float* mine) {
  for (int n = 0; n < COUNT; n++) {
    for (int m = 0; m < M; m++) {
      const float sum = simd_sum(total[n][m]);
      if (lane == 0) {
        mine[n + m] = sum;
      }
    }
  }
}
