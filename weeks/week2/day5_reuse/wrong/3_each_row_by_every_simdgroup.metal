// Every simdgroup brings everything: x is read four times.
//
// caught by: TestTask3ShareRows::test_each_eight_has_its_place

template <typename T, int ROWS, int THREADS>
inline void share_rows(const device T* x, uint first_row, uint block, uint M, uint K, uint thread_index, threadgroup Eight<T>* shared) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index % 32; i < uint(ROWS * BLOCK / 8); i += 32) {
    const uint row = i / (BLOCK / 8), eighth = i % (BLOCK / 8), k = block * BLOCK + eighth * 8;
    Eight<T> values;
    if (first_row + row < M && k < K) {
      values = *(const device Eight<T>*)(x + (first_row + row) * K + k);
    } else {
      for (int v = 0; v < 8; v++) {
        values.values[v] = T(0);
      }
    }
    shared[row * PITCH + eighth % (CHUNK / 8) * 8 + eighth / (CHUNK / 8)] = values;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
