// simd_sum where some lanes do not come: all 32 must call it.
//
// caught by: TestTask6SimdTotal::test_sum_of_a_row

inline void simd_total(const device float* x, device float* y, uint K, uint row, uint lane) {
  float total = 0;
  for (uint k = lane; k < K; k += 32) {
    total += x[row * K + k];
  }
  if (lane < K) {
    total = simd_sum(total);
  }
  if (lane == 0) {
    y[row] = total;
  }
}
