// partial has a place for each simdgroup, not for each lane.
//
// caught by: TestTask7BlockTotal::test_sum_over_simdgroups

inline void block_total(
    const device float* x, device float* y, uint K, uint row, uint rank, uint lane, uint simdgroup, uint simdgroups,
    threadgroup float* partial) {
  float total = 0;
  for (uint k = rank; k < K; k += 32 * simdgroups) {
    total += x[row * K + k];
  }
  total = simd_sum(total);
  if (lane == 0) {
    partial[simdgroup] = total;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0) {
    total = simd_sum(partial[lane]);
    if (lane == 0) {
      y[row] = total;
    }
  }
}
