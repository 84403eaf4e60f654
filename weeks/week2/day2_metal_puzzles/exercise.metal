// Day 2.2: twelve small kernels. The chapter is README.md beside the tests; each function here is called by every thread of a launch.
//
//   tinymlx learn check 2.2 --watch          grades this file whenever you save it, and says who races with whom

// Task 1. y[i] = 3 x[i] + 1, one thread an element: there are n threads, and this one is thread i.
//
//   thread   0     1     2     3
//   x        o     o     o     o
//            |     |     |     |
//   y        o     o     o     o
inline void map(const device float* x, device float* y, uint i) {
  static_assert(false, "2.2 task 1: one number in, one out");
}

// Task 2. y[i] = a[i] b[i], again one thread an element.
inline void zip(const device float* a, const device float* b, device float* y, uint i) {
  static_assert(false, "2.2 task 2: two numbers in, one out");
}

// Task 3. y[i] = max(x[i], 0) for i < n. There are more threads than numbers: whole threadgroups of 32.
//
//   thread   0 ... 31 | 32 33 34 ... 63
//   x        o ...  o |  o                n = 33: threads 33 to 63 have nothing
inline void guarded(const device float* x, device float* y, uint n, uint i) {
  static_assert(false, "2.2 task 3: threads without a number");
}

// Task 4. y[r, c] = a[r] + b[c], [rows, columns], row after row in memory. at.x counts columns and at.y rows; there may be more of both.
inline void outer_sum(const device float* a, const device float* b, device float* y, uint rows, uint columns, uint2 at) {
  static_assert(false, "2.2 task 4: a grid of two dimensions");
}

// Task 5. y[i] = (x[i-1] + x[i] + x[i+1]) / 3 for i < n, where x is 0 outside. `width` threads are a threadgroup, this one is number
// `rank` in it and number i of all; tile has width + 2 places, which they share. x must be read once, but for the tiles' borders.
//
//   x      ... o [ o  o  o  o ] o ...     read by threads 0, 0 1 2 3, 3
//   tile         [ o  o  o  o  o  o ]     y of thread t needs places t, t + 1, t + 2
inline void stencil(const device float* x, device float* y, uint n, uint i, uint rank, uint width, threadgroup float* tile) {
  static_assert(false, "2.2 task 5: neighbours through threadgroup memory");
}

// Task 6. y[row] = the sum of row `row` of x [R, K], by the 32 lanes of one simdgroup.
//
//   k      0 1 2 ... 31 | 32 33 ... 63 | 64 ...      lane l takes l, l + 32, l + 64, ...
inline void simd_total(const device float* x, device float* y, uint K, uint row, uint lane) {
  static_assert(false, "2.2 task 6: 32 lanes add up");
}

// Task 7. The same by a threadgroup of several simdgroups: `rank` counts in the threadgroup, `lane` in its simdgroup. partial has a
// place for each simdgroup. Somebody wrote this in a hurry. Delete the marker, check, and mend what the report shows.
inline void block_total(
    const device float* x, device float* y, uint K, uint row, uint rank, uint lane, uint simdgroup, uint simdgroups,
    threadgroup float* partial) {
  static_assert(false, "2.2 task 7: the first race: delete this line and check");
  float total = 0;
  for (uint k = rank; k < K; k += 32 * simdgroups) {
    total += x[row * K + k];
  }
  total = simd_sum(total);
  if (lane == 0) {
    partial[simdgroup] = total;
  }
  if (simdgroup == 0) {
    total = simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
    if (lane == 0) {
      y[row] = total;
    }
  }
}

// Task 8. y[c, r] = x[r, c], x [rows, columns]. Threadgroups of 16 x 16 threads: `group` counts them and `at` the threads in one, .x along
// columns of x. tile has 16 * 17 places. 16 threads with the same at.y must read 16 numbers that lie side by side in x, and write 16
// that lie side by side in y. X and Y are used as pointers: x[i], y[i] = ... .
//
//   x                  y
//   . . . . . .        . . B .
//   . . A A . .        . . B .       A, read row by row into the tile,
//   . . A A . .        . A A .       is written row by row as well:
//                      . A A .       its rows are the tile's columns
template <typename X, typename Y>
inline void transposed(X x, Y y, uint rows, uint columns, uint2 group, uint2 at, threadgroup float* tile) {
  static_assert(false, "2.2 task 8: rows become columns");
}

// Task 9. y[row, k] = x[row, 0] + ... + x[row, k], K <= width, a threadgroup of `width` threads a row, tile of as many places.
//
//   tile     a      b      c      d           one place a thread
//   step 1   a     ab     bc     cd           each adds what stands 1 before it,
//   step 2   a     ab    abc   abcd           then 2 before it, 4, 8, ...
//
// This one looks right. Delete the marker, check, and mend it.
inline void scan(const device float* x, device float* y, uint K, uint row, uint rank, uint width, threadgroup float* tile) {
  static_assert(false, "2.2 task 9: the second race: delete this line and check");
  tile[rank] = rank < K ? x[row * K + rank] : 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint step = 1; step < width; step *= 2) {
    if (rank >= step) {
      tile[rank] += tile[rank - step];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (rank < K) {
    y[row * K + rank] = tile[rank];
  }
}

// Task 10. counts[v] = how often v occurs among n codes of 0 ... 15. One threadgroup of `width` threads; bins are 16 counters in its
// memory, of which nobody knows what is in them. One at a time:
// atomic_store_explicit(&bins[v], 0u, memory_order_relaxed), atomic_fetch_add_explicit(&bins[v], 1u, memory_order_relaxed),
// atomic_load_explicit(&bins[v], memory_order_relaxed).
inline void histogram(
    const device uint* codes, device uint* counts, uint n, uint rank, uint width, threadgroup atomic_uint* bins) {
  static_assert(false, "2.2 task 10: many threads at one counter");
}

// Task 11. c = a b, [M, K] times [K, N]. Threadgroups of 16 x 16 threads, `group` and `at` as in task 8, one thread an element of c. left
// and right have 16 * 16 places each: the threadgroup fills both, multiplies, and goes on along K.
//
//             b   . [R] .
//                 . [R] .
//   a  [L][L]     . [c] .         each number of L is used by 16 threads, and read from a by one
inline void product(
    const device float* a, const device float* b, device float* c, uint M, uint N, uint K, uint2 group, uint2 at,
    threadgroup float* left, threadgroup float* right) {
  static_assert(false, "2.2 task 11: tiles of two matrices");
}

// Task 12. y[row] = softmax of row `row` of x [R, K]: exp(x - m) over their sum, m the row's maximum. A threadgroup of 128 threads a row:
// four simdgroups, and partial has a place for each.
inline void softmax(
    const device float* x, device float* y, uint K, uint row, uint rank, uint lane, uint simdgroup, threadgroup float* partial) {
  static_assert(false, "2.2 task 12: two reductions and a map");
}
