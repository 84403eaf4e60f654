// scan: the running sum of a row of up to 1024 values, a simdgroup's prefix and then the sums of those before it.
void scan(const device float* x, device float* y, uint n, uint t, uint lane, uint simdgroup, uint simdgroups,
          threadgroup float* sums) {
  float value = t < n ? x[t] : 0.0f;
  float running = simd_prefix_inclusive_sum(value);
  if (lane == 31) {
    sums[simdgroup] = running;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float before = 0;
  for (uint s = 0; s < simdgroup; s++) {
    before += sums[s];
  }
  if (t < n) {
    y[t] = before + running;
  }
}
