// The first simdgroup's sum is taken for all.
//
// caught by: TestTask4Outputs::test_two_simdgroups_share_k

template <int PLACES>
inline float sum_of_splits(threadgroup float* partial, uint first, uint splits, int at) {
  float sum = 0;
  for (uint split = 0; split < 1; split++) {
    sum += partial[(first + split) * PLACES + at];
  }
  return sum;
}
