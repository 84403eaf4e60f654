// Every row of x is the first one.
//
// caught by: TestTask3Products::test_three_rows_of_x

template <int M, int BITS, bool MX, bool NORM, int OUTPUTS, typename X, typename V>
inline void multiply_share(
    X x, V weight, uint K, uint k, bool active, thread uint4 (&packed)[OUTPUTS][BITS / 4], thread float (&products)[OUTPUTS][M],
    thread float (&sums)[M], thread float (&squares)[M]) {
  for (int m = 0; m < M; m++) {
    sums[m] = 0;
    for (int n = 0; n < OUTPUTS; n++) {
      products[n][m] = 0;
    }
  }
  for (int eight = 0; eight < 4; eight++) {
    float q[OUTPUTS][8], weights[8];
    for (int n = 0; n < OUTPUTS; n++) {
      unpack8<BITS, MX>(packed[n], eight, q[n]);
    }
    if (NORM) {
      load8(weight + k + eight * 8, weights);
    }
    for (int m = 0; m < M; m++) {
      float values[8];
      load8(x + k + eight * 8, values);
      for (int i = 0; i < 8; i++) {
        if (NORM) {
          squares[m] += active ? values[i] * values[i] : 0.0f;
          values[i] *= weights[i];
        }
        sums[m] += values[i];
      }
      for (int n = 0; n < OUTPUTS; n++) {
        for (int i = 0; i < 8; i++) {
          products[n][m] += q[n][i] * values[i];
        }
      }
    }
  }
}
