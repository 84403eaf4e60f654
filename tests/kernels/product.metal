// product: c = a b by 8x8 matrices; two simdgroups share a tile of 16 columns of b, each has 8 rows of a.
template <typename T>
void product(const device T* a, const device T* b, device float* c, uint M, uint N, uint K, uint2 tile, uint t,
             uint simdgroup, threadgroup T* left, threadgroup T* right) {
  simdgroup_matrix<float, 8, 8> sum[2];
  for (uint j = 0; j < 2; j++) {
    sum[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (uint k = 0; k < K; k += 8) {
    for (uint i = t; i < 16 * 8; i += 64) {
      uint row = 16 * tile.y + i / 8, column = k + i % 8;
      left[i] = row < M && column < K ? a[row * K + column] : T(0);
      uint deep = k + i / 16, across = 16 * tile.x + i % 16;
      right[i] = deep < K && across < N ? b[deep * N + across] : T(0);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_matrix<T, 8, 8> l, r;
    simdgroup_load(l, left + 64 * simdgroup, 8);
    for (uint j = 0; j < 2; j++) {
      simdgroup_load(r, right + 8 * j, 16);
      simdgroup_multiply_accumulate(sum[j], l, r, sum[j]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  uint row = 16 * tile.y + 8 * simdgroup, column = 16 * tile.x;
  for (uint j = 0; j < 2; j++) {
    simdgroup_store(sum[j], c + row * N + column + 8 * j, N);
  }
}
