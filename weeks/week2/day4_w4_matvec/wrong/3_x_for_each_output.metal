// One output after another, each with its own reading of x: right, and four times the loads.
//
// caught by: TestTask3Products::test_x_is_read_once_a_tile

template <int M, int BITS, bool MX, bool NORM, int OUTPUTS, typename X, typename V>
inline void multiply_share(
    X x, V weight, uint K, uint k, bool active, thread uint4 (&packed)[OUTPUTS][BITS / 4], thread float (&products)[OUTPUTS][M],
    thread float (&sums)[M], thread float (&squares)[M]) {
  for (int n = 0; n < OUTPUTS; n++) {
    for (int m = 0; m < M; m++) {
      products[n][m] = sums[m] = 0;
    }
    for (int eight = 0; eight < 4; eight++) {
      float q[8];
      unpack8<BITS, MX>(packed[n], eight, q);
      for (int m = 0; m < M; m++) {
        float values[8], weights[8];
        load8(x + m * K + k + eight * 8, values);
        if (NORM) {
          load8(weight + k + eight * 8, weights);
        }
        for (int i = 0; i < 8; i++) {
          if (NORM) {
            squares[m] += active && n == 0 ? values[i] * values[i] : 0.0f;
            values[i] *= weights[i];
          }
          sums[m] += values[i];
          products[n][m] += q[i] * values[i];
        }
      }
    }
  }
}
