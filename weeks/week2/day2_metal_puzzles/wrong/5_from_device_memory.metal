// Right, and without the tile: every number is read three times.
//
// caught by: TestTask5Stencil::test_each_number_is_read_once

inline void stencil(const device float* x, device float* y, uint n, uint i, uint rank, uint width, threadgroup float* tile) {
  if (i < n) {
    y[i] = ((i > 0 ? x[i - 1] : 0) + x[i] + (i + 1 < n ? x[i + 1] : 0)) / 3;
  }
}
