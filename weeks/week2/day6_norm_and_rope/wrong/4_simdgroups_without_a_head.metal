// Simdgroups behind the last head go on: they write behind the end.
//
// caught by: TestTask4Rope::test_against_float64

template <typename T, int D, bool NORM, typename V, typename O>
inline void qk_norm_rope(
    const device T* q, const device T* k, const device V* q_weight, const device V* k_weight, const device float* eps,
    const device O* offsets, const device float* periods, const device float* scale, device T* y_q, device T* y_k, uint H, uint G,
    uint L, uint l, uint head, uint b, uint lane) {
  const bool is_query = head < H;
  const uint heads = is_query ? H : G, h = is_query ? head : head - H;
  const device T* x = (is_query ? q : k) + ((b * L + l) * heads + h) * D;
  device T* y = (is_query ? y_q : y_k) + ((b * heads + h) * L + l) * D;
  float first[(D / 2 + 31) / 32], second[(D / 2 + 31) / 32];
  norm_head<D, NORM>(x, is_query ? q_weight : k_weight, eps, lane, first, second);
  turn_head<D>(first, second, float(offsets[b] + O(l)), periods, scale, lane, y);
}
