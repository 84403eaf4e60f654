// A thread takes neighbouring numbers: 32 lanes read 32 pieces of memory at a time, and the GPU fetches them all.
//
// caught by: TestTask2RmsNorm::test_neighbours_read_neighbours

template <typename T, bool RESIDUAL, int SIMDGROUPS, typename X, typename W, typename E>
inline void rms_norm(
    X x, X residual, W weight, E eps, device T* y, device T* h, int K, uint row, uint lane_in_group, uint lane, uint simdgroup,
    threadgroup float* partial) {
  const uint lanes = SIMDGROUPS * 32;
  const uint start = row * K;
  const uint piece = (uint(K) + lanes - 1) / lanes;
  float squares = 0;
  for (uint i = lane_in_group * piece; i < min(uint(K), (lane_in_group + 1) * piece); i++) {
    T value = x[start + i];
    if (RESIDUAL) {
      value = T(float(value) + float(residual[start + i]));
      h[start + i] = value;
    }
    squares += float(value) * float(value);
  }
  const float total = sum_of_threadgroup<SIMDGROUPS>(squares, lane, simdgroup, partial);
  const float inverse = rsqrt(total / float(K) + float(eps[0]));

  for (uint i = lane_in_group * piece; i < min(uint(K), (lane_in_group + 1) * piece); i++) {
    const float value = RESIDUAL ? float(h[start + i]) : float(x[start + i]);
    y[start + i] = T(float(weight[i]) * float(T(value * inverse)));
  }
}
