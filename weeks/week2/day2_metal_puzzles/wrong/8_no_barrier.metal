// No barrier between filling and emptying the tile.
//
// caught by: TestTask8Transposed::test_rows_become_columns

template <typename X, typename Y>
inline void transposed(X x, Y y, uint rows, uint columns, uint2 group, uint2 at, threadgroup float* tile) {
  const uint row = group.y * 16 + at.y, column = group.x * 16 + at.x;
  if (row < rows && column < columns) {
    tile[at.y * 17 + at.x] = x[row * columns + column];
  }
  const uint new_row = group.x * 16 + at.y, new_column = group.y * 16 + at.x;
  if (new_row < columns && new_column < rows) {
    y[new_row * rows + new_column] = tile[at.x * 17 + at.y];
  }
}
