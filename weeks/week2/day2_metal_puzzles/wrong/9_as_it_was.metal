// As it was given: thread t adds to its place while thread t + step may still have to read it.
//
// caught by: TestTask9Scan::test_running_sums

inline void scan(const device float* x, device float* y, uint K, uint row, uint rank, uint width, threadgroup float* tile) {
  tile[rank] = rank < K ? x[row * K + rank] : 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint step = 1; step < width; step *= 2) {
    if (rank >= step) {
      tile[rank] += tile[rank - step];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (rank < K) {
    y[row * K + rank] = tile[rank];
  }
}
