// Right, and each of 16 neighbours writes into another row.
//
// caught by: TestTask8Transposed::test_neighbours_read_and_write_neighbours

template <typename X, typename Y>
inline void transposed(X x, Y y, uint rows, uint columns, uint2 group, uint2 at, threadgroup float* tile) {
  const uint row = group.y * 16 + at.y, column = group.x * 16 + at.x;
  if (row < rows && column < columns) {
    y[column * rows + row] = x[row * columns + column];
  }
}
