// A tree of shuffles by 16, 8, 4 and 2: the last step is missing.
//
// caught by: TestTask6SimdTotal::test_sum_of_a_row

inline void simd_total(const device float* x, device float* y, uint K, uint row, uint lane) {
  float total = 0;
  for (uint k = lane; k < K; k += 32) {
    total += x[row * K + k];
  }
  for (ushort step = 16; step > 1; step /= 2) {
    total += simd_shuffle_xor(total, step);
  }
  if (lane == 0) {
    y[row] = total;
  }
}
