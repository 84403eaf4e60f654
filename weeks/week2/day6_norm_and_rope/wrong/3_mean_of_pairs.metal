// The mean over pairs, D / 2: too small by the root of 2.
//
// caught by: TestTask3NormHead::test_against_float64

template <int D, bool NORM, typename T, typename V, int PAIRS>
inline void norm_head(
    const device T* x, const device V* weight, const device float* eps, uint lane, thread float (&first)[PAIRS],
    thread float (&second)[PAIRS]) {
  const int HALF = D / 2;
  float squares = 0;
  for (int p = 0; p < PAIRS; p++) {
    const int i = p * 32 + lane;
    first[p] = i < HALF ? float(x[i]) : 0.0f;
    second[p] = i < HALF ? float(x[i + HALF]) : 0.0f;
    squares += first[p] * first[p] + second[p] * second[p];
  }
  if (NORM) {
    const float inverse = rsqrt(simd_sum(squares) / float(HALF) + eps[0]);
    for (int p = 0; p < PAIRS; p++) {
      const int i = p * 32 + lane;
      if (i < HALF) {
        first[p] = float(weight[i]) * first[p] * inverse;
        second[p] = float(weight[i + HALF]) * second[p] * inverse;
      }
    }
  }
}
