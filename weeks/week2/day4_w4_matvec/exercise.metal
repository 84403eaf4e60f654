// Day 2.4: a few rows times a weight of 4 bits. The chapter is README.md beside the tests; it says what calls these functions, and what is
// given.
//
//   tinymlx learn check 2.4 --watch          grades this file whenever you save it, and shows bytes read too often and races
//   tinymlx learn run 2.4 --prompt "Hi"      answers with your functions inside the engine, if the model's weights have 4 bits

// Task 1. Number i = 0 ... 7 of a word, as a float: bits 4 i to 4 i + 3, unsigned. Without a conversion: the bits are put into the mantissa
// of a float 2^e, and 2^e is taken away.
//
//   bits     31 28 | 27 24 | 23 20 | 19 16 | 15 12 | 11  8 | 7   4 | 3   0
//   number     7   |   6   |   5   |   4   |   3   |   2   |   1   |   0
//                          '------------ mantissa of a float -------------
inline float nibble(uint word, int i) {
  static_assert(false, "2.4 task 1: four bits of a word to a float");
}

// Task 2. What this lane reads of row `row` of w: its 32 numbers from number k on, and its part of their group's scale and bias.
//
//   packed[v]      16 bytes each: words[row][k * BITS / 32 + 4 v ... + 3], read at once. BITS / 4 of them: one with 4 bits
//   scale, bias    GROUP == 32: scale_of<MX>(w.scales[row][group of k]), and the bias as a float, 0 where MX: this packing has none
//                  GROUP > 32: `scale` becomes the scale in the group's first lane, the bias in its second, 0 in others; `bias` stays free
//
// A lane that is not active reads nothing, and gets zeros in the place of all that it would have read. With GROUP > 32 scale or bias is one
// load of one of two addresses, and no `if` stands around loads: for speed, results and bytes do not show it.
template <int GROUP, int BITS, bool MX, typename S>
inline void load_share(
    Packed<S> w, uint row, uint K, uint k, uint lane, bool active, thread uint4 (&packed)[BITS / 4], thread float& scale,
    thread float& bias) {
  static_assert(false, "2.4 task 2: each word, scale and bias read by one lane");
}

// Task 2. After load_share and the products: the scale and the bias of its group to every lane. With groups of 32 they are there already.
//
//   lane       0      1      2      3   |   4      5      6      7  | ...       GROUP = 128
//   scale   scale0  bias0    0      0   | scale1 bias1    0      0  | ...       before
//   scale   scale0 scale0 scale0 scale0 | scale1 scale1 scale1 scale1           after, and bias0, bias1 likewise in `bias`
template <int GROUP>
inline void exchange_scales(uint lane, thread float& scale, thread float& bias) {
  static_assert(false, "2.4 task 2: to all lanes of the group");
}

// Task 3. A lane's 32 numbers q = packed[n] of OUTPUTS rows of weights, times the 32 numbers of x from k on, of each row m < M of x [M, K]:
//
//   products[n][m] = the sum of q x        sums[m] = the sum of x        both are not cleared yet
//
// Each eight of x is read once, for all n. The loops and what NORM asks for are given: x is multiplied by `weight`, and its square counts.
template <int M, int BITS, bool MX, bool NORM, int OUTPUTS, typename X, typename V>
inline void multiply_share(
    X x, V weight, uint K, uint k, bool active, thread uint4 (&packed)[OUTPUTS][BITS / 4], thread float (&products)[OUTPUTS][M],
    thread float (&sums)[M], thread float (&squares)[M]) {
  static_assert(false, "2.4 task 3: 32 numbers of each row");
  for (int eight = 0; eight < 4; eight++) {
    float q[OUTPUTS][8], weights[8];
    // here: q[n] of all outputs, by unpack8<BITS, MX>(packed[n], eight, q[n])
    if (NORM) {
      load8(weight + k + eight * 8, weights);
    }
    for (int m = 0; m < M; m++) {
      float values[8];
      // here: values of row m, by load8
      for (int i = 0; i < 8; i++) {
        if (NORM) {
          squares[m] += active ? values[i] * values[i] : 0.0f;
          values[i] *= weights[i];
        }
        // here: sums
      }
      // here: products
    }
  }
}

// Task 3. What this lane adds to the products of all M rows of x with 2 HALF rows of weights, over all of K: total[n][m], for n < HALF with
// row a_row + n of a, for others with row b_row + n - HALF of b. Both have N rows: a row behind the last is replaced by the last one, and
// what comes of it is not kept. squares[m] is what multiply_share adds up over all of K. Neither is cleared yet.
//
//   block             0          |          1          |          2          | ...    1024 numbers of k each
//   splits = 2    split 0 reads it      split 1             split 0                   32 numbers a lane: lane l from l * 32 on
//
// For each block: all loads (load_share), all products (multiply_share), and then for each n exchange_scales and the totals. A lane
// whose numbers would lie behind K is not active, and takes k = 0. A tile with a_row >= N has no row at all and must read nothing.
template <int M, int GROUP, int BITS, bool MX, bool NORM, int HALF, typename X, typename V, typename S>
inline void dot_rows(
    X x, V weight, Packed<S> a, uint a_row, Packed<S> b, uint b_row, uint K, uint N, uint split, uint splits, uint lane,
    thread float (&total)[2 * HALF][M], thread float (&squares)[M]) {
  static_assert(false, "2.4 task 3: a simdgroup's way along k");
}

// Task 4. mine[n * M + m] = the sum of total[n][m] over all 32 lanes of the simdgroup, stored by one of them. The barrier comes after it, in
// dot_tile.
template <int COUNT, int M>
inline void store_sums(thread float (&total)[COUNT][M], uint lane, threadgroup float* mine) {
  static_assert(false, "2.4 task 4: the lanes add up");
}

// Task 4. The sum of number `at` over the `splits` simdgroups from `first` on. Simdgroup s stored its PLACES numbers from s * PLACES on.
template <int PLACES>
inline float sum_of_splits(threadgroup float* partial, uint first, uint splits, int at) {
  static_assert(false, "2.4 task 4: the simdgroups of a tile add up");
}

// Task 4. y = x W^T + delta + residual, from tile to memory. Each threadgroup has `tiles` tiles of OUTPUTS neighbouring n, and each tile
// SPLITS simdgroups, which lie side by side:
//
//   simdgroup     0        1     |     2        3        SPLITS = 2, tiles = 2
//   tile          2 t            |     2 t + 1           in threadgroup t
//   split         0        1     |     0        1
//
// Once dot_tile has stored all sums, output_of<M, OUTPUTS, NORM>(partial, first simdgroup of the tile, SPLITS, n, m, K, eps) is output n of
// row m, n counted in the tile. The tile's 32 SPLITS lanes share its OUTPUTS * M outputs, which may be more than lanes: each is made and
// stored once. A row of y has only N. delta [M, N] is added if DELTA, in float. residual [M, N] is added if RESIDUAL, to what was rounded to T before:
// y = T(float(T(value)) + float(residual)).
template <typename T, bool MATRIX, int M, int GROUP, int BITS, bool MX, bool NORM, bool DELTA, bool RESIDUAL, int OUTPUTS, int SPLITS,
    typename S, typename V, typename E>
inline void w4_matvec(
    const device T* x, V weight, E eps, Packed<S> w, const device T* delta, const device T* residual, device T* y, uint K, uint N,
    uint threadgroup_index, uint tiles, uint simdgroup, uint lane, threadgroup float* partial) {
  static_assert(false, "2.4 task 4: tiles, and what follows the product");
  uint first, split;  // here: the tile's first output, and which of its simdgroups this is
  dot_tile<MATRIX, M, GROUP, BITS, MX, NORM, OUTPUTS>(
      x, weight, w, first, w, first + OUTPUTS / 2, K, N, split, SPLITS, simdgroup, lane, partial);
  // here: y
}
