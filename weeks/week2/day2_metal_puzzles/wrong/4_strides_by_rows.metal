// Rows lie `columns` apart, not `rows`.
//
// caught by: TestTask4OuterSum::test_rows_and_columns

inline void outer_sum(const device float* a, const device float* b, device float* y, uint rows, uint columns, uint2 at) {
  if (at.x < columns && at.y < rows) {
    y[at.y * rows + at.x] = a[at.y] + b[at.x];
  }
}
