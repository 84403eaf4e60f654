// transpose: 32x32 tiles through threadgroup memory, one column wider than a tile.
template <typename T>
void transpose(const device T* x, device T* y, uint rows, uint columns, uint2 tile, uint2 t,
               threadgroup T (*block)[33]) {
  for (uint j = t.y; j < 32; j += 8) {
    uint row = 32 * tile.y + j, column = 32 * tile.x + t.x;
    if (row < rows && column < columns) {
      block[j][t.x] = x[row * columns + column];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint j = t.y; j < 32; j += 8) {
    uint row = 32 * tile.x + j, column = 32 * tile.y + t.x;
    if (row < columns && column < rows) {
      y[row * rows + column] = block[t.x][j];
    }
  }
}
