// Only lane 0 of each simdgroup comes to the barrier: undefined, a GPU may hang.
//
// caught by: TestTask1SumOfThreadgroup::test_every_thread_gets_it

template <int SIMDGROUPS>
inline float sum_of_threadgroup(float value, uint lane, uint simdgroup, threadgroup float* partial) {
  const float sum = simd_sum(value);
  if (lane == 0) {
    partial[simdgroup] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  float total = 0;
  for (int i = 0; i < SIMDGROUPS; i++) {
    total += partial[i];
  }
  return total;
}
