// Pairs of neighbours, 2 i and 2 i + 1, as other models have them: the norm is right, and the pairs are other ones.
//
// caught by: TestTask3NormHead::test_three_pairs

template <int D, bool NORM, typename T, typename V, int PAIRS>
inline void norm_head(
    const device T* x, const device V* weight, const device float* eps, uint lane, thread float (&first)[PAIRS],
    thread float (&second)[PAIRS]) {
  const int HALF = D / 2;
  float squares = 0;
  for (int p = 0; p < PAIRS; p++) {
    const int i = p * 32 + lane;
    first[p] = i < HALF ? float(x[2 * i]) : 0.0f;
    second[p] = i < HALF ? float(x[2 * i + 1]) : 0.0f;
    squares += first[p] * first[p] + second[p] * second[p];
  }
  if (NORM) {
    const float inverse = rsqrt(simd_sum(squares) / float(D) + eps[0]);
    for (int p = 0; p < PAIRS; p++) {
      const int i = p * 32 + lane;
      if (i < HALF) {
        first[p] = float(weight[2 * i]) * first[p] * inverse;
        second[p] = float(weight[2 * i + 1]) * second[p] * inverse;
      }
    }
  }
}
