// What a lane holds of the 8 x 8 matrices that a simdgroup multiplies together. cuda.h brings its own: another layout, and tensor cores.
//
//   left, sum    row fragment_row, columns fragment_column and the next
//   right        element j: row right_row, column right_column

#include "packed.metal"

#ifndef FRAGMENTS

inline uint fragment_row(uint lane) { return ((lane / 4) & 4) + (lane / 2) % 4; }
inline uint fragment_column(uint lane) { return ((lane / 4) & 2) * 2 + (lane % 2) * 2; }
inline uint right_row(uint lane, int) { return fragment_row(lane); }
inline uint right_column(uint lane, int j) { return fragment_column(lane) + j; }

// Two neighbouring elements of a matrix whose numbers come as T.
template <typename T>
struct Pair {
  float first, second;
};

template <typename T, typename N>
inline Pair<T> pair(N first, N second) {
  return Pair<T>{float(first), float(second)};
}

// Numbers t and t + 4 of eight packed ones (in one word, or in two if they are bytes), OFFSET<T> too large.
template <typename T, int BITS, bool MX>
inline Pair<T> packed_pair(uint word, uint next, int t) {
  return pair<T>(number<BITS, MX>(word, t), BITS == 8 ? number<BITS, MX>(next, t) : number<BITS, MX>(word, (t + 4) % 8));
}
template <typename T, int BITS, bool MX>
inline float packed_offset() { return 0; }

// Over all lanes and elements of right that lie in the same column.
inline void column_sums(thread float (&value)[2]) {
  for (int j = 0; j < 2; j++) {
    value[j] += simd_shuffle_xor(value[j], ushort(2));
    value[j] += simd_shuffle_xor(value[j], ushort(4));
    value[j] += simd_shuffle_xor(value[j], ushort(16));
  }
}
// What the lane of the same row of left, and of columns 2p and 2p + 1, holds.
inline float of_columns(float value, uint lane, uint p) { return simd_shuffle(value, ushort((lane & ~9u) | (p & 1) | (p & 2) << 2)); }

// sum (16 x 8) += left (16 x 16) right (16 x 8), each in quarters or halves of 8 x 8.
template <typename T>
inline void multiply(thread float (&sum)[2][2], thread Pair<T> (&left)[2][2], thread Pair<T> (&right)[2]) {
  for (int row = 0; row < 2; row++) {
    simdgroup_matrix<float, 8, 8> total, a, b;
    total.thread_elements()[0] = sum[row][0];
    total.thread_elements()[1] = sum[row][1];
    for (int k = 0; k < 2; k++) {
      a.thread_elements()[0] = left[row][k].first;
      a.thread_elements()[1] = left[row][k].second;
      b.thread_elements()[0] = right[k].first;
      b.thread_elements()[1] = right[k].second;
      simdgroup_multiply_accumulate(total, a, b, total);
    }
    sum[row][0] = total.thread_elements()[0];
    sum[row][1] = total.thread_elements()[1];
  }
}

#endif
