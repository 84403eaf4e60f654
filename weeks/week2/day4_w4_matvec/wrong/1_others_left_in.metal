// The bits of the lower neighbours stay in the mantissa.
//
// caught by: TestTask1Nibble::test_every_number_in_every_place

inline float nibble(uint word, int i) {
  return as_type<float>((word >> (4 * i) & 0xffu) | 0x4b000000u) - 8388608.0f;
}
