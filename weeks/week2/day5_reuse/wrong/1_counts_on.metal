// k and v do not begin at 0 again: their outputs are written behind the end.
//
// caught by: TestTask1NormQkv::test_tiles_in_a_row

template <int OUTPUTS>
inline uint2 part_of(uint tile, uint NQ, uint NK) {
  const uint of_q = (NQ + OUTPUTS - 1) / OUTPUTS, of_k = (NK + OUTPUTS - 1) / OUTPUTS;
  const uint which = tile < of_q ? 0 : tile < of_q + of_k ? 1 : 2;
  return uint2{which, tile * OUTPUTS};
}
