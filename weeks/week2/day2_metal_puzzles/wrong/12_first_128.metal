// One number a thread: longer rows lose the rest.
//
// caught by: TestTask12Softmax::test_a_row_is_a_distribution

inline void softmax(
    const device float* x, device float* y, uint K, uint row, uint rank, uint lane, uint simdgroup, threadgroup float* partial) {
  const device float* of_row = x + row * K;
  float highest = -INFINITY;
  if (uint k = rank; k < K) {
    highest = max(highest, of_row[k]);
  }
  highest = simd_max(highest);
  if (lane == 0) {
    partial[simdgroup] = highest;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  highest = max(max(partial[0], partial[1]), max(partial[2], partial[3]));
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float total = 0;
  if (uint k = rank; k < K) {
    total += exp(of_row[k] - highest);
  }
  total = simd_sum(total);
  if (lane == 0) {
    partial[simdgroup] = total;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  total = partial[0] + partial[1] + partial[2] + partial[3];
  if (uint k = rank; k < K) {
    y[row * K + k] = exp(of_row[k] - highest) / total;
  }
}
