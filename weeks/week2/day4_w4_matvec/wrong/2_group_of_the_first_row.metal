// The group counted along k alone: every row has row 0's scales.
//
// caught by: TestTask2Loads::test_groups

template <int GROUP, int BITS, bool MX, typename S>
inline void load_share(
    Packed<S> w, uint row, uint K, uint k, uint lane, bool active, thread uint4 (&packed)[BITS / 4], thread float& scale,
    thread float& bias) {
  const uint sharer = lane % (GROUP / 32), group = k / GROUP;
  for (int v = 0; v < BITS / 4; v++) {
    packed[v] = active ? *(const device uint4*)(w.words + row * (K * BITS / 32) + k * BITS / 32 + 4 * v) : uint4{0, 0, 0, 0};
  }
  if (GROUP == 32) {
    scale = active ? scale_of<MX>(w.scales[group]) : 0.0f;
    bias = active && !MX ? float(w.biases[group]) : 0.0f;
  } else {
    scale = active && sharer < 2 ? float((sharer == 0 ? w.scales : w.biases)[group]) : 0.0f;
  }
}
