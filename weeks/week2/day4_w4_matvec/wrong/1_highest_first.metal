// The words read from the left: number 0 is in the lowest bits.
//
// caught by: TestTask1Nibble::test_every_number_in_every_place

inline float nibble(uint word, int i) {
  return as_type<float>((word >> (28 - 4 * i) & 15u) | 0x4b000000u) - 8388608.0f;
}
