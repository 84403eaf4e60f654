// tree_sum: the sum of each row, halving a scratch array.
template <typename T, int THREADS>
void tree_sum(const device T* x, device float* y, uint n, uint row, uint t, threadgroup float* part) {
  float sum = 0;
  for (uint i = t; i < n; i += THREADS) {
    sum += float(x[row * n + i]);
  }
  part[t] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint half_way = THREADS / 2; half_way > 0; half_way /= 2) {
    if (t < half_way) {
      part[t] += part[t + half_way];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (t == 0) {
    y[row] = part[0];
  }
}
