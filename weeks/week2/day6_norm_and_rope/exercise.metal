// Day 2.6: a norm by one threadgroup, and norm and rotation of a head by one simdgroup. The chapter is README.md beside the tests.
//
//   tinymlx learn check 2.6 --watch          grades this file whenever you save it, and shows races and bytes read too often
//   tinymlx learn run 2.6 --prompt "Hi"      answers with your qk_norm_rope inside the engine

// Task 1. The sum of `value` over all threads of a threadgroup, SIMDGROUPS x 32 of them; every thread gets it. `partial` are SIMDGROUPS
// floats that they share, with anything in them. simd_sum(v) is the sum over the 32 lanes of a simdgroup, for each of them.
//
//   thread      0 ... 31 | 32 ... 63 | 64 ... 95 | ...
//   lane        0 ... 31 |  0 ... 31 |  0 ... 31 | ...
//   simdgroup       0    |     1     |     2     | ...
//
// Each place of `partial` is written by one thread. Whoever calls this twice puts a barrier between.
template <int SIMDGROUPS>
inline float sum_of_threadgroup(float value, uint lane, uint simdgroup, threadgroup float* partial) {
  static_assert(false, "2.6 task 1: the sum over a threadgroup");
}

// Task 2. One row of K numbers, by a threadgroup of SIMDGROUPS x 32 threads; this one is lane_in_group. Row r begins at r * K.
//
//   RESIDUAL        h = x + residual, rounded to T and stored        without: h is x, and neither `residual` nor `h` may be touched
//                   n = h / sqrt(mean of h^2 + eps[0])               float32 from the numbers of h as they are stored, rounded to T
//                   y = weight * n                                   rounded to T
//
// x and residual are read once each where RESIDUAL, x at most twice without. Neighbouring threads read neighbouring numbers. K is anything
// from 1 on, also fewer than there are threads. Accumulate in float; sum_of_threadgroup<SIMDGROUPS>(...) is there, yours or the product's.
// X, W and E are types to be read as x[i], weight[i], eps[0]. y and h belong to the row's threadgroup alone. rsqrt(v) is 1 / sqrt(v).
template <typename T, bool RESIDUAL, int SIMDGROUPS, typename X, typename W, typename E>
inline void rms_norm(
    X x, X residual, W weight, E eps, device T* y, device T* h, int K, uint row, uint lane_in_group, uint lane, uint simdgroup,
    threadgroup float* partial) {
  static_assert(false, "2.6 task 2: the norm, with the residual");
}

// Task 3. A head, x [D], into the registers of one simdgroup. Pair i is numbers i and i + D/2; this lane holds pairs lane, lane + 32, ...:
//
//   i             0 ... 31 | 32 ... 63 | ...         first[p] is number i = 32 p + lane, second[p] number i + D/2
//   lane          0 ... 31 |  0 ... 31 | ...         where i is D/2 or more: both are 0, and nothing is read
//   p                 0    |     1     | ...         PAIRS are enough for D/2
//
// With NORM the head is normalised: weight[j] * x[j] / sqrt(mean of x^2 + eps[0]), j = 0 ... D - 1, kept as float and not rounded to T.
// Without, the numbers are as they are, and weight and eps are not read. No threadgroup memory, no barrier.
template <int D, bool NORM, typename T, typename V, int PAIRS>
inline void norm_head(
    const device T* x, const device V* weight, const device float* eps, uint lane, thread float (&first)[PAIRS],
    thread float (&second)[PAIRS]) {
  static_assert(false, "2.6 task 3: a head in a simdgroup's registers");
}

// Task 4. Turns the pairs that norm_head has left in `first` and `second` by angle = position / periods[i], in float32, and stores them,
// times scale[0], rounded to T once:
//
//   y[i] = scale (first cos(angle) - second sin(angle))        y[i + D/2] = scale (second cos(angle) + first sin(angle))
//
// Angles come to 100,000 and more: ask for precise::cos and precise::sin. Nothing is stored for i from D/2 on.
template <int D, typename T, int PAIRS>
inline void turn_head(
    thread float (&first)[PAIRS], thread float (&second)[PAIRS], float position, const device float* periods, const device float* scale,
    uint lane, device T* y) {
  static_assert(false, "2.6 task 4: pairs turned by their position");
}

// Task 4. What one simdgroup does: token l of L, of row b, and one head. `head` counts the H heads of q first, then the G of k; the last
// threadgroup's simdgroups may have none, head >= H + G, and must do nothing. The head's numbers move:
//
//   from  q [B, L, H, D]  or  k [B, L, G, D]        to  y_q [B, H, L, D]  or  y_k [B, G, L, D]
//
// Heads of q take q_weight, heads of k k_weight. The position is offsets[b] + l: each row b begins at its own. norm_head<D, NORM>(...) and
// turn_head<D>(...) do the rest; arrays of (D / 2 + 31) / 32 floats hold the pairs.
template <typename T, int D, bool NORM, typename V, typename O>
inline void qk_norm_rope(
    const device T* q, const device T* k, const device V* q_weight, const device V* k_weight, const device float* eps,
    const device O* offsets, const device float* periods, const device float* scale, device T* y_q, device T* y_k, uint H, uint G,
    uint L, uint l, uint head, uint b, uint lane) {
  static_assert(false, "2.6 task 4: which head, from where, to where");
}
