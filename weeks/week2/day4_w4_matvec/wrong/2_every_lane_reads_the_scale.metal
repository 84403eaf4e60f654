// Every lane of a group reads scale and bias: right, and two or four times the bytes.
//
// caught by: TestTask2Loads::test_all_is_read_once

template <int GROUP, int BITS, bool MX, typename S>
inline void load_share(
    Packed<S> w, uint row, uint K, uint k, uint lane, bool active, thread uint4 (&packed)[BITS / 4], thread float& scale,
    thread float& bias) {
  const uint group = row * (K / GROUP) + k / GROUP;
  for (int v = 0; v < BITS / 4; v++) {
    packed[v] = active ? *(const device uint4*)(w.words + row * (K * BITS / 32) + k * BITS / 32 + 4 * v) : uint4{0, 0, 0, 0};
  }
  scale = active ? scale_of<MX>(w.scales[group]) : 0.0f;
  bias = active && !MX ? float(w.biases[group]) : 0.0f;
}

template <int GROUP>
inline void exchange_scales(uint lane, thread float& scale, thread float& bias) {
}
