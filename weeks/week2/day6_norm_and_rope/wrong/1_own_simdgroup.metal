// Each simdgroup gets the sum of its own 32 threads: right as long as there is one.
//
// caught by: TestTask1SumOfThreadgroup::test_every_thread_gets_it

template <int SIMDGROUPS>
inline float sum_of_threadgroup(float value, uint lane, uint simdgroup, threadgroup float* partial) {
  const float sum = simd_sum(value);
  return sum;
}
