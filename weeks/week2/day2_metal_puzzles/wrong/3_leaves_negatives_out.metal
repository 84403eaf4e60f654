// Writes only what is positive: an output is not zero before, it is anything.
//
// caught by: TestTask3Guarded::test_more_threads_than_elements

inline void guarded(const device float* x, device float* y, uint n, uint i) {
  if (i < n && x[i] > 0) {
    y[i] = x[i];
  }
}
