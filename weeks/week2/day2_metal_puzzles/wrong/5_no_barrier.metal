// No barrier: a neighbour may not have brought its number yet.
//
// caught by: TestTask5Stencil::test_mean_of_three

inline void stencil(const device float* x, device float* y, uint n, uint i, uint rank, uint width, threadgroup float* tile) {
  tile[rank + 1] = i < n ? x[i] : 0;
  if (rank == 0) {
    tile[0] = i > 0 ? x[i - 1] : 0;
  }
  if (rank == width - 1) {
    tile[width + 1] = i + 1 < n ? x[i + 1] : 0;
  }
  if (i < n) {
    y[i] = (tile[rank] + tile[rank + 1] + tile[rank + 2]) / 3;
  }
}
