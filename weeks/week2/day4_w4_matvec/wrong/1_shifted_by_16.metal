// The upper half of the word moved down by 16: number 5 is then where number 1 was, and numbers 5 to 7 come out as 4 to 6.
//
// caught by: TestTask1Nibble::test_every_number_in_every_place

inline float nibble(uint word, int i) {
  const uint from = i < 5 ? word : word >> 16;
  const int at = i < 5 ? i : i - 5;
  return at == 0   ? as_type<float>((from & 0xfu) | 0x4b000000u) - 8388608.0f
         : at == 1 ? as_type<float>((from & 0xf0u) | 0x49000000u) - 524288.0f
         : at == 2 ? as_type<float>((from & 0xf00u) | 0x47000000u) - 32768.0f
         : at == 3 ? as_type<float>((from & 0xf000u) | 0x45000000u) - 2048.0f
                   : as_type<float>((from & 0xf0000u) | 0x43000000u) - 128.0f;
}
