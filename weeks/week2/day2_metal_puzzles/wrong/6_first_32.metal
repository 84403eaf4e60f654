// Adds only the first 32 numbers.
//
// caught by: TestTask6SimdTotal::test_sum_of_a_row

inline void simd_total(const device float* x, device float* y, uint K, uint row, uint lane) {
  float total = 0;
  if (uint k = lane; k < K) {
    total += x[row * K + k];
  }
  total = simd_sum(total);
  if (lane == 0) {
    y[row] = total;
  }
}
