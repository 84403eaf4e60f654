// Right, and each thread reads its own row and column: 16 times the bytes.
//
// caught by: TestTask11Product::test_a_tile_is_read_once_for_16_rows

inline void product(
    const device float* a, const device float* b, device float* c, uint M, uint N, uint K, uint2 group, uint2 at,
    threadgroup float* left, threadgroup float* right) {
  const uint row = group.y * 16 + at.y, column = group.x * 16 + at.x;
  if (row < M && column < N) {
    float total = 0;
    for (uint k = 0; k < K; k++) {
      total += a[row * K + k] * b[k * N + column];
    }
    c[row * N + column] = total;
  }
}
