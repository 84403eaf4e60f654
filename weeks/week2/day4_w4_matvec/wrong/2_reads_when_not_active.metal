// Lanes behind K read the first numbers of the row, which then count twice or more.
//
// caught by: TestTask2Loads::test_groups

template <int GROUP, int BITS, bool MX, typename S>
inline void load_share(
    Packed<S> w, uint row, uint K, uint k, uint lane, bool active, thread uint4 (&packed)[BITS / 4], thread float& scale,
    thread float& bias) {
  const uint sharer = lane % (GROUP / 32), group = row * (K / GROUP) + k / GROUP;
  for (int v = 0; v < BITS / 4; v++) {
    packed[v] = *(const device uint4*)(w.words + row * (K * BITS / 32) + k * BITS / 32 + 4 * v);
  }
  if (GROUP == 32) {
    scale = scale_of<MX>(w.scales[group]);
    bias = !MX ? float(w.biases[group]) : 0.0f;
  } else {
    scale = sharer < 2 ? float((sharer == 0 ? w.scales : w.biases)[group]) : 0.0f;
  }
}
