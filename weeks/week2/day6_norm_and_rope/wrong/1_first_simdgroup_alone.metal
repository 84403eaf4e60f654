// Only simdgroup 0 adds the places up; the others return 0.
//
// caught by: TestTask1SumOfThreadgroup::test_every_thread_gets_it

template <int SIMDGROUPS>
inline float sum_of_threadgroup(float value, uint lane, uint simdgroup, threadgroup float* partial) {
  const float sum = simd_sum(value);
  if (lane == 0) {
    partial[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0;
  for (int i = 0; simdgroup == 0 && i < SIMDGROUPS; i++) {
    total += partial[i];
  }
  return total;
}
