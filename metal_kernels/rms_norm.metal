// rms_norm: each vector scaled to unit root mean square, then by its weight; what is added first is the residual.   week 2.6
//
//   h = x + r          y = weight * (h * rsqrt(mean(h^2) + eps))
//
// Shapes     x, r, h, y [R,K]   weight [K]   eps [1]   no residual: R = 0 in RESIDUAL, and h is not written
// Grid       one threadgroup a row: SIMDGROUPS x 32 lanes
// Picture    lane i takes elements i, i + lanes, i + 2 lanes, ...: neighbours read neighbours
// Scratch    SIMDGROUPS floats: each simdgroup's sum of squares
// Numbers    T stored, float accumulated; rounded to T before the weight, as Hugging Face does
// Bound by   bandwidth: (2 + 2 RESIDUAL) K sizeof(T) bytes a row, and the weight once
// Reference  tinymlx/ops/norm.py: rms_norm
// Read first of all

// To every thread the sum of `value` over SIMDGROUPS simdgroups; `partial` is not free again before the next barrier.
template <int SIMDGROUPS>
inline float sum_of_threadgroup(float value, uint lane, uint simdgroup, threadgroup float* partial) {
  const float sum = simd_sum(value);
  if (lane == 0) {
    partial[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0;
  for (int i = 0; i < SIMDGROUPS; i++) {
    total += partial[i];
  }
  return total;
}

// One row, by all threads of its threadgroup; each reads again of h only what it has written itself.
template <typename T, bool RESIDUAL, int SIMDGROUPS, typename X, typename W, typename E>
inline void rms_norm(
    X x, X residual, W weight, E eps, device T* y, device T* h, int K, uint row, uint lane_in_group, uint lane, uint simdgroup,
    threadgroup float* partial) {
  const uint lanes = SIMDGROUPS * 32;
  const uint start = row * K;
  float squares = 0;
  for (uint i = lane_in_group; i < uint(K); i += lanes) {
    T value = x[start + i];
    if (RESIDUAL) {
      value = T(float(value) + float(residual[start + i]));
      h[start + i] = value;
    }
    squares += float(value) * float(value);
  }
  const float total = sum_of_threadgroup<SIMDGROUPS>(squares, lane, simdgroup, partial);
  const float inverse = rsqrt(total / float(K) + float(eps[0]));

  for (uint i = lane_in_group; i < uint(K); i += lanes) {
    const float value = RESIDUAL ? float(h[start + i]) : float(x[start + i]);
    y[start + i] = T(float(weight[i]) * float(T(value * inverse)));
  }
}
