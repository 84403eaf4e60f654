// embed_w4: the rows of a packed table that tokens ask for.                                                          week 2.3
//
//   y[r,k] = scale[t,g] q[t,k] + bias[t,g]        t = tokens[r], g = k / GROUP
//
// Shapes     tokens [R]   w [V,K*BITS/32] uint32   scales, biases [V,K/GROUP]   y [R,K]
// Grid       one threadgroup a token, of LANES lanes
// Picture    lane i takes words i, i + LANES, ...: neighbours read neighbours, and each writes the 32 / BITS numbers of its word
// Scratch    none
// Numbers    y of T, scales and biases of S, float in between, rounded once; a token outside 0 .. V-1 counts as V-1
// Bound by   bandwidth: K (BITS / 8 + sizeof(T)) bytes a token, 2 K / GROUP sizeof(S) of scales and biases; few tokens: the launch
// Reference  tinymlx/ops/embedding.py: embedding
// Read after quantize_w4.metal; new here: reading where data say

#include "packed.metal"

template <typename T, int GROUP, int BITS, bool MX, int LANES, typename S, typename I>
inline void embed_w4(I tokens, Packed<S> table, device T* y, uint K, uint V, uint row, uint lane) {
  const uint numbers = 32 / BITS, words = K / numbers;
  const size_t token = min(uint(tokens[row]), V - 1);  // a wrong token must not read elsewhere
  for (uint i = lane; i < words; i += LANES) {
    const uint word = table.words[token * words + i];
    const size_t group = token * (K / GROUP) + i * numbers / GROUP;
    const float scale = scale_of<MX>(table.scales[group]), bias = MX ? 0.0f : float(table.biases[group]);
    for (uint j = 0; j < numbers; j++) {
      y[size_t(row) * K + i * numbers + j] = T(scale * number<BITS, MX>(word, j) + bias);
    }
  }
}
