// qk_norm_rope: every query and key head normalised, turned by its position, and laid out for attention, in one launch.   week 2.6
//
//   n = weight * x * rsqrt(mean(x^2) + eps)          n = x without NORM          a = (offset[b] + l) / period[i]
//   y[i] = scale * (n[i] cos a - n[i + D/2] sin a)   y[i + D/2] = scale * (n[i + D/2] cos a + n[i] sin a)
//
// Shapes     q [B,L,H,D]   k [B,L,G,D]   weights [D]   eps, scale [1]   offsets [B]   periods [D/2]   y_q [B,H,L,D]   y_k [B,G,L,D]
// Grid       one simdgroup a head: threadgroups of 32 x SIMDGROUPS over (l, head of q and then of k, b)
// Picture    i      0 .. 31 | 32 .. 63 | ...     lane i % 32 holds both halves of pair i, elements i and i + D/2
//            lane   0 .. 31 |  0 .. 31 | ...
// Scratch    none: a head stays in registers, its sum of squares is a simd_sum
// Numbers    T stored, float in between, rounded once; precise cos and sin: the fast ones know no angle of 100,000
// Bound by   bandwidth: 2 (H + G) D sizeof(T) bytes a token
// Reference  tinymlx/ops/rope.py: rope, tinymlx/ops/norm.py: rms_norm
// Read after rms_norm.metal; new here: one launch over two arrays, a change of layout on the way out

template <typename T, int D, bool NORM, typename V, typename O>
inline void qk_norm_rope(
    const device T* q, const device T* k, const device V* q_weight, const device V* k_weight, const device float* eps,
    const device O* offsets, const device float* periods, const device float* scale, device T* y_q, device T* y_k, uint H, uint G,
    uint L, uint l, uint head, uint b, uint lane) {
  const int HALF = D / 2, PAIRS = (HALF + 31) / 32;
  const bool is_query = head < H;
  const uint heads = is_query ? H : G, h = is_query ? head : head - H;
  if (h >= heads) {  // the last threadgroup's simdgroups behind the last key head
    return;
  }
  const device T* x = (is_query ? q : k) + ((b * L + l) * heads + h) * D;
  const device V* weight = is_query ? q_weight : k_weight;
  device T* y = (is_query ? y_q : y_k) + ((b * heads + h) * L + l) * D;

  float first[PAIRS], second[PAIRS], squares = 0;
  for (int p = 0; p < PAIRS; p++) {
    const int i = p * 32 + lane;
    first[p] = i < HALF ? float(x[i]) : 0.0f;
    second[p] = i < HALF ? float(x[i + HALF]) : 0.0f;
    squares += first[p] * first[p] + second[p] * second[p];
  }
  const float inverse = NORM ? rsqrt(simd_sum(squares) / float(D) + eps[0]) : 1.0f;

  const float position = float(offsets[b] + O(l));
  for (int p = 0; p < PAIRS; p++) {
    const int i = p * 32 + lane;
    if (i < HALF) {
      const float n = NORM ? float(weight[i]) * first[p] * inverse : first[p];
      const float m = NORM ? float(weight[i + HALF]) * second[p] * inverse : second[p];
      const float angle = position / periods[i];
      const float cosine = precise::cos(angle) * scale[0], sine = precise::sin(angle) * scale[0];
      y[i] = T(n * cosine - m * sine);
      y[i + HALF] = T(m * cosine + n * sine);
    }
  }
}
