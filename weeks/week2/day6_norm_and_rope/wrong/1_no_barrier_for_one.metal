// No barrier where there is one simdgroup: lanes in step are no promise, and 31 read what lane 0 writes.
//
// caught by: TestTask1SumOfThreadgroup::test_in_the_norm

template <int SIMDGROUPS>
inline float sum_of_threadgroup(float value, uint lane, uint simdgroup, threadgroup float* partial) {
  const float sum = simd_sum(value);
  if (lane == 0) {
    partial[simdgroup] = sum;
  }
  if (SIMDGROUPS > 1) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  float total = 0;
  for (int i = 0; i < SIMDGROUPS; i++) {
    total += partial[i];
  }
  return total;
}
