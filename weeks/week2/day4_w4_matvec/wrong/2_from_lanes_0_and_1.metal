// The first group's scale and bias for all lanes.
//
// caught by: TestTask2Loads::test_groups

template <int GROUP>
inline void exchange_scales(uint lane, thread float& scale, thread float& bias) {
  const uint sharer = lane % (GROUP / 32);
  if (GROUP > 32) {
    bias = simd_shuffle(scale, ushort(1));
    scale = simd_shuffle(scale, ushort(0));
  }
}
