// Every thread writes element 0: a race, and the rest is never written.
//
// caught by: TestTask1Map::test_every_element

inline void map(const device float* x, device float* y, uint i) {
  y[0] = 3 * x[i] + 1;
}
