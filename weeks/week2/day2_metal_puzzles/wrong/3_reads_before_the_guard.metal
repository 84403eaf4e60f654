// Guards the writing alone; reading behind an array is no better.
//
// caught by: TestTask3Guarded::test_more_threads_than_elements

inline void guarded(const device float* x, device float* y, uint n, uint i) {
  const float value = max(x[i], 0.0f);
  if (i < n) {
    y[i] = value;
  }
}
