// All 32 lanes of a simdgroup write the same place: the same number, and 31 stores in vain.
//
// caught by: TestTask1SumOfThreadgroup::test_every_thread_gets_it

template <int SIMDGROUPS>
inline float sum_of_threadgroup(float value, uint lane, uint simdgroup, threadgroup float* partial) {
  const float sum = simd_sum(value);
  partial[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0;
  for (int i = 0; i < SIMDGROUPS; i++) {
    total += partial[i];
  }
  return total;
}
