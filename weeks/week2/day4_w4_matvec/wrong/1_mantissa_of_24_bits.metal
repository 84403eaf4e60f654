// Numbers 5 in place: its highest bits lie in the exponent of a float.
//
// caught by: TestTask1Nibble::test_every_number_in_every_place

inline float nibble(uint word, int i) {
  const uint from = i < 6 ? word : word >> 24;
  const int at = i < 6 ? i : i - 6;
  return at == 0   ? as_type<float>((from & 0xfu) | 0x4b000000u) - 8388608.0f
         : at == 1 ? as_type<float>((from & 0xf0u) | 0x49000000u) - 524288.0f
         : at == 2 ? as_type<float>((from & 0xf00u) | 0x47000000u) - 32768.0f
         : at == 3 ? as_type<float>((from & 0xf000u) | 0x45000000u) - 2048.0f
                   : at == 4 ? as_type<float>((from & 0xf0000u) | 0x43000000u) - 128.0f
                   : as_type<float>((from & 0xf00000u) | 0x41000000u) - 8.0f;
}
