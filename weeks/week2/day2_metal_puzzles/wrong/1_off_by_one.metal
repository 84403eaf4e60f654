// Counts from 1: the first element is left out and one behind the last is written.
//
// caught by: TestTask1Map::test_every_element

inline void map(const device float* x, device float* y, uint i) {
  y[i + 1] = 3 * x[i + 1] + 1;
}
