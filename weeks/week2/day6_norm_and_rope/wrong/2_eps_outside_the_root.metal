// eps beside the root: it acts on numbers of a millionth, and should on those of a thousandth.
//
// caught by: TestTask2RmsNorm::test_small_numbers_and_zeros

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
  const float inverse = 1.0f / (sqrt(total / float(K)) + float(eps[0]));

  for (uint i = lane_in_group; i < uint(K); i += lanes) {
    const float value = RESIDUAL ? float(h[start + i]) : float(x[start + i]);
    y[start + i] = T(float(weight[i]) * float(T(value * inverse)));
  }
}
