// Only the lanes that miss something call the shuffle: it must be called by all, those who give as well.
//
// caught by: TestTask2Loads::test_groups

template <int GROUP>
inline void exchange_scales(uint lane, thread float& scale, thread float& bias) {
  const uint sharer = lane % (GROUP / 32);
  if (GROUP > 32 && sharer > 0) {
    bias = simd_shuffle(scale, ushort(lane - sharer + 1));
    scale = simd_shuffle(scale, ushort(lane - sharer));
  }
}
