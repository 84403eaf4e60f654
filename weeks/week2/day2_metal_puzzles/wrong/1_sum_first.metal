// Adds before it multiplies.
//
// caught by: TestTask1Map::test_every_element

inline void map(const device float* x, device float* y, uint i) {
  y[i] = 3 * (x[i] + 1);
}
