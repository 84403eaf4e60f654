// Guards the flat index, as if the grid had one dimension.
//
// caught by: TestTask4OuterSum::test_rows_and_columns

inline void outer_sum(const device float* a, const device float* b, device float* y, uint rows, uint columns, uint2 at) {
  if (at.y * columns + at.x < rows * columns) {
    y[at.y * columns + at.x] = a[at.y] + b[at.x];
  }
}
