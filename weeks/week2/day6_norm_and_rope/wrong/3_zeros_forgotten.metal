// Leaves what is behind the head's end as it was, and adds its squares.
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
    if (i < HALF) {
      first[p] = float(x[i]);
      second[p] = float(x[i + HALF]);
    }
    squares += first[p] * first[p] + second[p] * second[p];
  }
  if (NORM) {
    const float inverse = rsqrt(simd_sum(squares) / float(D) + eps[0]);
    for (int p = 0; p < PAIRS; p++) {
      const int i = p * 32 + lane;
      if (i < HALF) {
        first[p] = float(weight[i]) * first[p] * inverse;
        second[p] = float(weight[i + HALF]) * second[p] * inverse;
      }
    }
  }
}
