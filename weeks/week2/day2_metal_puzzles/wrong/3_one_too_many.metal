// <= for <: thread n has no number, and writes one behind the last.
//
// caught by: TestTask3Guarded::test_more_threads_than_elements

inline void guarded(const device float* x, device float* y, uint n, uint i) {
  if (i <= n) {
    y[i] = max(x[i], 0.0f);
  }
}
