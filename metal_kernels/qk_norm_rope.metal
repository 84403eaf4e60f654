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

// Of one head the pairs i = 32 p + lane, zeros behind its end: first[p] is number i and second[p] number i + D/2, as they are or
// normalised.
template <int D, bool NORM, typename T, typename V, int PAIRS>
inline void norm_head(
    const device T* x, const device V* weight, const device float* eps, uint lane, thread float (&first)[PAIRS],
    thread float (&second)[PAIRS]) {
  const int HALF = D / 2;
  float squares = 0;
  for (int p = 0; p < PAIRS; p++) {
    const int i = p * 32 + lane;
    first[p] = i < HALF ? float(x[i]) : 0.0f;
    second[p] = i < HALF ? float(x[i + HALF]) : 0.0f;
    squares += first[p] * first[p] + second[p] * second[p];
  }
  if (NORM) {
    const float inverse = rsqrt(simd_sum(squares) / float(D) + eps[0]);
    for (int p = 0; p < PAIRS; p++) {
      const int i = p * 32 + lane;
      if (i < HALF) {
        first[p] = float(weight[i]) * first[p] * inverse;
        second[p] = float(weight[i + HALF]) * second[p] * inverse;
      }
    }
  }
}

// y: the head whose pairs `norm_head` has left, turned by position / period radians and scaled.
template <int D, typename T, int PAIRS>
inline void turn_head(
    thread float (&first)[PAIRS], thread float (&second)[PAIRS], float position, const device float* periods, const device float* scale,
    uint lane, device T* y) {
  const int HALF = D / 2;
  for (int p = 0; p < PAIRS; p++) {
    const int i = p * 32 + lane;
    if (i < HALF) {
      const float angle = position / periods[i];
      const float cosine = precise::cos(angle) * scale[0], sine = precise::sin(angle) * scale[0];
      y[i] = T(first[p] * cosine - second[p] * sine);
      y[i + HALF] = T(second[p] * cosine + first[p] * sine);
    }
  }
}

template <typename T, int D, bool NORM, typename V, typename O>
inline void qk_norm_rope(
    const device T* q, const device T* k, const device V* q_weight, const device V* k_weight, const device float* eps,
    const device O* offsets, const device float* periods, const device float* scale, device T* y_q, device T* y_k, uint H, uint G,
    uint L, uint l, uint head, uint b, uint lane) {
  const bool is_query = head < H;
  const uint heads = is_query ? H : G, h = is_query ? head : head - H;
  if (h >= heads) {  // the last threadgroup's simdgroups behind the last key head
    return;
  }
  const device T* x = (is_query ? q : k) + ((b * L + l) * heads + h) * D;
  device T* y = (is_query ? y_q : y_k) + ((b * heads + h) * L + l) * D;
  float first[(D / 2 + 31) / 32], second[(D / 2 + 31) / 32];
  norm_head<D, NORM>(x, is_query ? q_weight : k_weight, eps, lane, first, second);
  turn_head<D>(first, second, float(offsets[b] + O(l)), periods, scale, lane, y);
}
