// Day 2.5: several rows and several weights for one reading. The chapter is README.md beside the tests.
//
//   tinymlx learn check 2.5 --watch          grades this file whenever you save it
//
// Found in metal_kernels/include/, and yours to call:
//
//   Packed<S>        a packed weight [N, K]: words, scales, biases (packed.metal)
//   dot_tile<MATRIX, M, GROUP, BITS, MX, true, OUTPUTS>(x, weight, a, a_row, b, b_row, K, N, split, SPLITS, simdgroup, lane, partial)
//                    M rows of x, normed, times a tile of OUTPUTS rows of weights: OUTPUTS / 2 of `a` from a_row on, then as many of `b`
//                    from b_row on, both [N, K]. The simdgroup takes the split-th of SPLITS shares of k and leaves its sums in `partial`.
//                    At its end is a barrier: every simdgroup must call it. Rows from N on are safe to ask for; ignore what comes out.
//   output_of<M, OUTPUTS, true>(partial, s, SPLITS, n, m, K, eps)
//                    after it: number n of the tile's OUTPUTS, of row m of x, a float; s is the first of the tile's SPLITS simdgroups
//   Eight<T>         eight neighbouring numbers, .values[0 ... 7]; 16 or 32 bytes that are read and written as one
//   Pair<T>, pair<T>(first, second), fragment_row(lane), fragment_column(lane), multiply(sum, left, right): see task 4 (fragment.metal)

// Task 1. Tiles of OUTPUTS outputs cover those of q first, 0 ... NQ - 1, then k's, then v's, 0 ... NK - 1 each. A tile belongs to one of
// them, so the last of each may not be full. Returns uint2{which, first}: 0, 1, 2 for q, k, v, and the tile's first output, counted within
// it. A tile behind the last is v's too.
//
//   OUTPUTS 4, NQ 10, NK 5     tile     0    1    2  |  3    4  |  5    6    7
//                              which    0    0    0  |  1    1  |  2    2    2
//                              first    0    4    8  |  0    4  |  0    4    8
template <int OUTPUTS>
inline uint2 part_of(uint tile, uint NQ, uint NK) {
  static_assert(false, "2.5 task 1: one launch, three weights");
}

// Task 1. Each simdgroup of the launch calls this. A threadgroup makes `tiles` tiles in turn, with SPLITS simdgroups each:
//
//   simdgroup   0 ... SPLITS - 1              | SPLITS ... 2 SPLITS - 1     | ...
//   tile        threadgroup_index * tiles     | the next                    | ...
//
// It makes its tile of q, k or v: all OUTPUTS rows of the tile are from the same of wq, wk, wv. Output n of row m of x goes to place
// m * N + n of q, k or v, where N is NQ or NK; if DELTA, the number at the same place of dq, dk or dv is added first, as float. Rounded to
// T once. The tile's OUTPUTS * M results are shared among its SPLITS * 32 lanes, each made by one lane; outputs from N on are not written.
template <typename T, bool MATRIX, int M, int GROUP, int BITS, bool MX, bool DELTA, int OUTPUTS, int SPLITS, typename S, typename V,
    typename E>
inline void norm_qkv(
    const device T* x, V weight, E eps, Packed<S> wq, Packed<S> wk, Packed<S> wv, const device T* dq, const device T* dk,
    const device T* dv, device T* q, device T* k, device T* v, uint K, uint NQ, uint NK, uint threadgroup_index, uint tiles,
    uint simdgroup, uint lane, threadgroup float* partial) {
  static_assert(false, "2.5 task 1: a tile of one of three");
}

// Task 2. y = silu(g) u, [M, N], with silu(g) = g / (1 + exp(-g)). g are the normed rows times `gate`, u times `up`, both [N, K]; if DELTA,
// dg and du [M, N] are added to them. Simdgroups, tiles and lanes as in task 1, but a tile makes OUTPUTS / 2 numbers of y:
//
//   tile t     n of output_of    0 ... OUTPUTS/2 - 1           OUTPUTS/2 ... OUTPUTS - 1
//              is of             gate, t OUTPUTS/2 and on      up, the same rows
//
// g, u and silu(g) are rounded to T, as layers that store them would, and then the product.
template <typename T, bool MATRIX, int M, int GROUP, int BITS, bool MX, bool DELTA, int OUTPUTS, int SPLITS, typename S, typename V,
    typename E>
inline void norm_gate_up(
    const device T* x, V weight, E eps, Packed<S> gate, Packed<S> up, const device T* dg, const device T* du, device T* y, uint K, uint N,
    uint threadgroup_index, uint tiles, uint simdgroup, uint lane, threadgroup float* partial) {
  static_assert(false, "2.5 task 2: gate and up in one tile");
}

// Task 3. Many rows: THREADS threads (this one is thread_index) bring ROWS rows of x [M, K], from first_row on, and of them the 128 numbers
// from block * 128 on, to where all can read them. Rows from M on and numbers from K on are zeros. K is a multiple of 8. Each Eight of x is
// read once, at *(const device Eight<T>*)(x + ...), and goes to one place:
//
//   number of the block    0 .. 7   8 .. 15  16 .. 23  24 .. 31  ...  120 .. 127
//   chunk, half of it       0, 0     0, 1      1, 0      1, 1             7, 1
//   place                      shared[row * 17 + half * 8 + chunk]
//
// shared still holds the block before, which others may be reading; and they go on to read the new one as soon as this returns.
template <typename T, int ROWS, int THREADS>
inline void share_rows(const device T* x, uint first_row, uint block, uint M, uint K, uint thread_index, threadgroup Eight<T>* shared) {
  static_assert(false, "2.5 task 3: a block of x for all simdgroups");
}

// Task 4. Adds products of ROWS rows of x and COLUMNS x 8 outputs, over 64 of the block's k: one half, half_chunk, of each of its 8 chunks.
// sum[r][c] is 16 rows of them, from 16 r on, times 8 outputs. There are four steps; step s takes numbers 2 s and 2 s + 1 of each half:
//
//   multiply(sum[r][c], left, right[c][s])      all 32 lanes together: sum (16 x 8) += left (16 x 16) right (16 x 8)
//
// right is there. left is Pair<T> left[2][2]; left[i][k] are two numbers that this lane brings, pair<T>(first, second): both of row
// 16 r + 8 i + fragment_row(lane), and both number 2 s + k of their Eight; the first of chunk fragment_column(lane), the second of the next
// chunk. shared is as task 3 leaves it, and is not written.
template <typename T, int ROWS, int COLUMNS>
inline void multiply_rows(
    threadgroup Eight<T>* shared, int half_chunk, uint lane, thread Pair<T> (&right)[COLUMNS][4][2],
    thread float (&sum)[ROWS / 16][COLUMNS][2][2]) {
  static_assert(false, "2.5 task 4: rows that share unpacked weights");
}
