// Lanes behind the head's end store too: over the second half.
//
// caught by: TestTask4Rope::test_against_float64

template <int D, typename T, int PAIRS>
inline void turn_head(
    thread float (&first)[PAIRS], thread float (&second)[PAIRS], float position, const device float* periods, const device float* scale,
    uint lane, device T* y) {
  const int HALF = D / 2;
  for (int p = 0; p < PAIRS; p++) {
    const int i = p * 32 + lane;
    {
      const float angle = position / periods[i];
      const float cosine = precise::cos(angle) * scale[0], sine = precise::sin(angle) * scale[0];
      y[i] = T(first[p] * cosine - second[p] * sine);
      y[i + HALF] = T(second[p] * cosine + first[p] * sine);
    }
  }
}
