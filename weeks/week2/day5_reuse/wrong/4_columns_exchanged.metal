// The next chunk's number comes first.
//
// caught by: TestTask4MultiplyRows::test_small_integers

template <typename T, int ROWS, int COLUMNS>
inline void multiply_rows(
    threadgroup Eight<T>* shared, int half_chunk, uint lane, thread Pair<T> (&right)[COLUMNS][4][2],
    thread float (&sum)[ROWS / 16][COLUMNS][2][2]) {
  for (int r = 0; r < ROWS / 16; r++) {
    Eight<T> values[2][2];  // [half of the 16 rows][one of the lane's two columns]
    for (int i = 0; i < 2; i++) {
      const uint row = r * 16 + i * 8 + fragment_row(lane);
      for (int j = 0; j < 2; j++) {
        values[i][j] = shared[row * PITCH + half_chunk * 8 + fragment_column(lane) + j];
      }
    }
    for (int step = 0; step < 4; step++) {
      Pair<T> left[2][2];
      for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 2; k++) {
          left[i][k] = pair<T>(values[i][1].values[step * 2 + k], values[i][0].values[step * 2 + k]);
        }
      }
      for (int c = 0; c < COLUMNS; c++) {
        multiply(sum[r][c], left, right[c][step]);
      }
    }
  }
}
