// Reads the right tile along rows.
//
// caught by: TestTask11Product::test_a_times_b

inline void product(
    const device float* a, const device float* b, device float* c, uint M, uint N, uint K, uint2 group, uint2 at,
    threadgroup float* left, threadgroup float* right) {
  const uint row = group.y * 16 + at.y, column = group.x * 16 + at.x;
  float total = 0;
  for (uint k = 0; k < K; k += 16) {
    left[at.y * 16 + at.x] = row < M && k + at.x < K ? a[row * K + k + at.x] : 0;
    right[at.y * 16 + at.x] = column < N && k + at.y < K ? b[(k + at.y) * N + column] : 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint j = 0; j < 16; j++) {
      total += left[at.y * 16 + j] * right[at.x * 16 + j];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (row < M && column < N) {
    c[row * N + column] = total;
  }
}
