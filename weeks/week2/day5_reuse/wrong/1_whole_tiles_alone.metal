// Rounds the number of tiles down: the outputs that do not fill a tile are nobody's.
//
// caught by: TestTask1NormQkv::test_tiles_in_a_row

template <int OUTPUTS>
inline uint2 part_of(uint tile, uint NQ, uint NK) {
  const uint of_q = NQ / OUTPUTS, of_k = NK / OUTPUTS;
  const uint which = tile < of_q ? 0 : tile < of_q + of_k ? 1 : 2;
  return uint2{which, (tile - (which == 0 ? 0 : which == 1 ? of_q : of_q + of_k)) * OUTPUTS};
}
