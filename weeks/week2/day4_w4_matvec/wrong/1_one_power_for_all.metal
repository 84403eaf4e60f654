// 2^23 for every place: number 1 is 16 times too large.
//
// caught by: TestTask1Nibble::test_every_number_in_every_place

inline float nibble(uint word, int i) {
  const uint from = i < 5 ? word : word >> 20;
  const int at = i < 5 ? i : i - 5;
  return at == 0   ? as_type<float>((from & 0xfu) | 0x4b000000u) - 8388608.0f
         : at == 1 ? as_type<float>((from & 0xf0u) | 0x4b000000u) - 8388608.0f
         : at == 2 ? as_type<float>((from & 0xf00u) | 0x4b000000u) - 8388608.0f
         : at == 3 ? as_type<float>((from & 0xf000u) | 0x4b000000u) - 8388608.0f
                   : as_type<float>((from & 0xf0000u) | 0x4b000000u) - 8388608.0f;
}
