// Takes at.x for the row: x is the axis along which neighbours lie.
//
// caught by: TestTask4OuterSum::test_rows_and_columns

inline void outer_sum(const device float* a, const device float* b, device float* y, uint rows, uint columns, uint2 at) {
  if (at.y < columns && at.x < rows) {
    y[at.x * columns + at.y] = a[at.x] + b[at.y];
  }
}
