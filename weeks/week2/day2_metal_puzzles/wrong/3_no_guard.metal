// No guard: the threads from n on read and write behind the arrays.
//
// caught by: TestTask3Guarded::test_more_threads_than_elements

inline void guarded(const device float* x, device float* y, uint n, uint i) {
  y[i] = max(x[i], 0.0f);
}
