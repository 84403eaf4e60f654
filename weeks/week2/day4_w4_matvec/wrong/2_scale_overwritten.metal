// `scale` is replaced before the bias is taken out of it.
//
// caught by: TestTask2Loads::test_groups

template <int GROUP>
inline void exchange_scales(uint lane, thread float& scale, thread float& bias) {
  const uint sharer = lane % (GROUP / 32);
  if (GROUP > 32) {
    scale = simd_shuffle(scale, ushort(lane - sharer));
    bias = simd_shuffle(scale, ushort(lane - sharer + 1));
  }
}
