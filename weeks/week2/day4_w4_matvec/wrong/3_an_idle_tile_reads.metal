// A tile behind the last multiplies the last row, and nobody takes what comes out.
//
// caught by: TestTask3Products::test_an_idle_tile_reads_nothing

template <int M, int GROUP, int BITS, bool MX, bool NORM, int HALF, typename X, typename V, typename S>
inline void dot_rows(
    X x, V weight, Packed<S> a, uint a_row, Packed<S> b, uint b_row, uint K, uint N, uint split, uint splits, uint lane,
    thread float (&total)[2 * HALF][M], thread float (&squares)[M]) {
  for (int m = 0; m < M; m++) {
    squares[m] = 0;
    for (int n = 0; n < 2 * HALF; n++) {
      total[n][m] = 0;
    }
  }
  for (uint block = split * 1024; block < K; block += splits * 1024) {
    const bool active = block + lane * 32 < K;
    const uint k = active ? block + lane * 32 : 0;  // a lane without numbers takes zeros times the first of x
    uint4 packed[2 * HALF][BITS / 4];
    float scale[2 * HALF], bias[2 * HALF], products[2 * HALF][M], sums[M];
    for (int n = 0; n < 2 * HALF; n++) {  // all loads first: they are under way while the first is waited for
      const uint row = min(n < HALF ? a_row + n : b_row + (n - HALF), N - 1);
      load_share<GROUP, BITS, MX>(n < HALF ? a : b, row, K, k, lane, active, packed[n], scale[n], bias[n]);
    }
    multiply_share<M, BITS, MX, NORM, 2 * HALF>(x, weight, K, k, active, packed, products, sums, squares);
    for (int n = 0; n < 2 * HALF; n++) {
      exchange_scales<GROUP>(lane, scale[n], bias[n]);  // as late as this: it waits for the numbers
      for (int m = 0; m < M; m++) {
        total[n][m] += scale[n] * products[n][m] + bias[n] * sums[m];
      }
    }
  }
}
