// The number as a signed one: 8 to 15 become -8 to -1.
//
// caught by: TestTask1Nibble::test_every_number_in_every_place

inline float nibble(uint word, int i) {
  const int q = int(word >> (4 * i)) & 15;
  return float(q < 8 ? q : q - 16);
}
