// Orders 32 lanes, and the numbers cross from one simdgroup to the next.
//
// caught by: TestTask9Scan::test_running_sums

inline void scan(const device float* x, device float* y, uint K, uint row, uint rank, uint width, threadgroup float* tile) {
  tile[rank] = rank < K ? x[row * K + rank] : 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint step = 1; step < width; step *= 2) {
    const float before = rank >= step ? tile[rank - step] : 0;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    tile[rank] += before;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (rank < K) {
    y[row * K + rank] = tile[rank];
  }
}
