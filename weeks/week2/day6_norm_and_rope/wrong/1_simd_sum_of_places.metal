// simd_sum over `partial`: each simdgroup must have 32 places to read, and there are SIMDGROUPS.
//
// caught by: TestTask1SumOfThreadgroup::test_every_thread_gets_it

template <int SIMDGROUPS>
inline float sum_of_threadgroup(float value, uint lane, uint simdgroup, threadgroup float* partial) {
  const float sum = simd_sum(value);
  if (lane == 0) {
    partial[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(partial[lane]);
}
