// Adds the sums of the threadgroup's first tile, whichever tile it is.
//
// caught by: TestTask4Outputs::test_two_simdgroups_share_k

template <int PLACES>
inline float sum_of_splits(threadgroup float* partial, uint first, uint splits, int at) {
  float sum = 0;
  for (uint split = 0; split < splits; split++) {
    sum += partial[split * PLACES + at];
  }
  return sum;
}
