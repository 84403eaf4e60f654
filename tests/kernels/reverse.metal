// reverse: each run of 32 values turned round, by a simdgroup's scratch and by a shuffle; both must agree.
void reverse(const device float* x, device float* y, uint i, uint lane, uint simdgroup, threadgroup float* scratch) {
  float value = x[i];
  threadgroup float* mine = scratch + 32 * simdgroup;
  mine[lane] = value;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  float turned = mine[31 - lane];
  float shuffled = simd_shuffle(value, ushort(31 - lane));
  float pair = quad_sum(value);
  y[2 * i] = turned == shuffled ? turned : NAN;
  y[2 * i + 1] = pair;
}
