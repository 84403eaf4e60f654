// A barrier that only simdgroup 0 comes to.
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
  if (simdgroup == 0) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total = simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
    if (lane == 0) {
      y[row] = total;
    }
  }
}
