// Threads from n on leave before the barrier, where the others wait for them.
//
// caught by: TestTask5Stencil::test_mean_of_three

inline void stencil(const device float* x, device float* y, uint n, uint i, uint rank, uint width, threadgroup float* tile) {
  if (i >= n) {
    return;
  }
  tile[rank + 1] = x[i];
  if (rank == 0) {
    tile[0] = i > 0 ? x[i - 1] : 0;
  }
  if (rank == width - 1) {
    tile[width + 1] = i + 1 < n ? x[i + 1] : 0;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i < n) {
    y[i] = (tile[rank] + tile[rank + 1] + tile[rank + 2]) / 3;
  }
}
