// softmax: one row a threadgroup; maximum and sum by simdgroups, then over simdgroups.
template <typename T, int SIMDGROUPS>
void softmax_row(const device T* x, device T* y, uint n, uint row, uint t, uint lane, uint simdgroup,
                 threadgroup float* part) {
  x += row * n;
  y += row * n;
  float top = -INFINITY;
  for (uint i = t; i < n; i += 32 * SIMDGROUPS) {
    top = max(top, float(x[i]));
  }
  top = simd_max(top);
  if (lane == 0) part[simdgroup] = top;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint s = 0; s < SIMDGROUPS; s++) {
    top = max(top, part[s]);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);  // all have read the maxima
  float sum = 0;
  for (uint i = t; i < n; i += 32 * SIMDGROUPS) {
    sum += exp(float(x[i]) - top);
  }
  sum = simd_sum(sum);
  if (lane == 0) part[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sum = 0;
  for (uint s = 0; s < SIMDGROUPS; s++) {
    sum += part[s];
  }
  for (uint i = t; i < n; i += 32 * SIMDGROUPS) {
    y[i] = T(exp(float(x[i]) - top) / sum);
  }
}
