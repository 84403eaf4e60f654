// dot.metal on the matrix units: left is 16 rows of the weight, right up to 16 rows of x as columns.
//
//   k of a group   0 .. GROUP/4 - 1 | .. GROUP/2 - 1 | .. 3 GROUP/4 - 1 | .. GROUP - 1     a lane unpacks a quarter of a group of a row, at
//   columns             0, 1        |      2, 3      |       4, 5       |    6, 7          each step four numbers; x follows in the same order

#include "fragment.metal"

// mine[n * M + m] becomes the product of row m of x and row n of the tile, 8 of `a` from a_row on and then 8 of `b` from b_row on; with
// NORM x is multiplied by `weight` first, rounded to T, and mine[16 M + m] is the sum of x^2. The simdgroup takes its share of the groups.
template <typename T, int M, int GROUP, int BITS, bool MX, bool NORM, typename V, typename S>
inline void dot_matrix(
    const device T* x, V weight, Packed<S> a, uint a_row, Packed<S> b, uint b_row, uint K, uint N, uint split, uint splits, uint lane,
    threadgroup float* mine) {
  const int TILES = (M + 7) / 8, AHEAD = 256 / GROUP, EIGHTS = GROUP / 32, WORDS = BITS / 4;  // groups at a time, eights of numbers a lane
  const uint words = K * BITS / 32, groups = K / GROUP, row = fragment_row(lane), quarter = fragment_column(lane) / 2;
  float total[TILES][2][2], squares[TILES][2];
  for (int tile = 0; tile < TILES; tile++) {
    for (int j = 0; j < 2; j++) {
      total[tile][0][j] = 0;
      total[tile][1][j] = 0;
      squares[tile][j] = 0;
    }
  }

  for (uint block = split * AHEAD; block < groups && a_row < N; block += splits * AHEAD) {
    uint packed[AHEAD][2][EIGHTS * WORDS];
    float scaling[AHEAD][2];
    for (int ahead = 0; ahead < AHEAD; ahead++) {  // all loads first: they are under way while the first is waited for
      for (int half_tile = 0; half_tile < 2; half_tile++) {
        const Packed<S> from = half_tile == 0 ? a : b;
        const uint n = (half_tile == 0 ? a_row : b_row) + row, group = block + ahead;
        const bool active = n < N && group < groups;
        const device uint* at = from.words + n * words + (group * 4 + quarter) * (EIGHTS * WORDS);
        for (int i = 0; i < EIGHTS * WORDS; i += 4) {
          if (EIGHTS * WORDS == 1) {
            packed[ahead][half_tile][0] = active ? at[0] : 0u;
          } else if (EIGHTS * WORDS == 2) {
            const uint2 two = active ? *(const device uint2*)at : uint2{0, 0};
            packed[ahead][half_tile][0] = two.x;
            packed[ahead][half_tile][EIGHTS * WORDS - 1] = two.y;
          } else {
            const uint4 four = active ? *(const device uint4*)(at + i) : uint4{0, 0, 0, 0};
            packed[ahead][half_tile][i] = four.x;
            packed[ahead][half_tile][i + 1] = four.y;
            packed[ahead][half_tile][i + 2] = four.z;
            packed[ahead][half_tile][i + 3] = four.w;
          }
        }
        // One lane of the row reads the scale, its neighbour the bias.
        scaling[ahead][half_tile] = 0;
        if (MX) {
          scaling[ahead][half_tile] = active && quarter == 0 ? scale_of<MX>(from.scales[n * groups + group]) : 0.0f;
        } else if (active && quarter < 2) {
          scaling[ahead][half_tile] = float((quarter == 0 ? from.scales : from.biases)[n * groups + group]);
        }
      }
    }
    for (int ahead = 0; ahead < AHEAD; ahead++) {
      const uint group = block + ahead;
      float sum[TILES][2][2], sums[TILES][2][2];  // products with the packed numbers, and with ones
      for (int tile = 0; tile < TILES; tile++) {
        for (int i = 0; i < 2; i++) {
          for (int j = 0; j < 2; j++) {
            sum[tile][i][j] = 0;
            sums[tile][i][j] = 0;
          }
        }
      }
      for (int eight = 0; eight < EIGHTS; eight++) {
        Pair<T> right[TILES][4];
        for (int tile = 0; tile < TILES; tile++) {
          T element[2][4];
          for (int j = 0; j < 2; j++) {
            const uint m = tile * 8 + right_column(lane, j);
            const uint k = (group * 4 + right_row(lane, j) / 2) * (GROUP / 4) + eight * 8;
            const bool second = right_row(lane, j) % 2 == 1;  // of the numbers t and t + 4
            if (m < uint(M) && group < groups) {
              const Eight<T> values = *(const device Eight<T>*)(x + m * K + k);
              for (int t = 0; t < 4; t++) {
                element[j][t] = second ? values.values[t + 4] : values.values[t];
              }
              if (NORM) {
                float weights[8];
                load8(weight + k, weights);
                for (int t = 0; t < 4; t++) {
                  const float value = float(element[j][t]);
                  squares[tile][j] += value * value;
                  element[j][t] = T(value * (second ? weights[t + 4] : weights[t]));
                }
              }
            } else {
              for (int t = 0; t < 4; t++) {
                element[j][t] = T(0);
              }
            }
          }
          for (int t = 0; t < 4; t++) {
            right[tile][t] = pair<T>(element[0][t], element[1][t]);
          }
        }
        for (int step = 0; step < 2; step++) {
          Pair<T> left[2][2], ones[2][2];
          for (int half_tile = 0; half_tile < 2; half_tile++) {
            const thread uint* eight_words = packed[ahead][half_tile] + eight * WORDS;
            for (int k = 0; k < 2; k++) {
              left[half_tile][k] = packed_pair<T, BITS, MX>(eight_words[0], eight_words[WORDS - 1], step * 2 + k);
              ones[half_tile][k] = pair<T>(1.0f, 1.0f);
            }
          }
          for (int tile = 0; tile < TILES; tile++) {
            Pair<T> two[2] = {right[tile][step * 2], right[tile][step * 2 + 1]};
            multiply(sum[tile], left, two);
            if (!MX) {
              multiply(sums[tile], ones, two);
            }
          }
        }
      }
      for (int half_tile = 0; half_tile < 2; half_tile++) {
        const float scale = of_columns(scaling[ahead][half_tile], lane, 0);
        const float bias = MX ? 0.0f : of_columns(scaling[ahead][half_tile], lane, 1) - packed_offset<T, BITS, MX>() * scale;
        for (int tile = 0; tile < TILES; tile++) {
          for (int j = 0; j < 2; j++) {
            total[tile][half_tile][j] += scale * sum[tile][half_tile][j] + bias * sums[tile][half_tile][j];
          }
        }
      }
    }
  }

  for (int tile = 0; tile < TILES; tile++) {
    for (int j = 0; j < 2; j++) {
      const uint m = tile * 8 + fragment_column(lane) + j;
      if (m < uint(M)) {
        mine[row * M + m] = total[tile][0][j];
        mine[(row + 8) * M + m] = total[tile][1][j];
      }
      if (NORM) {
        const float sum = column_sum(squares[tile][j]);
        const uint column = tile * 8 + right_column(lane, j);
        if (right_row(lane, j) < 2 && column < uint(M)) {
          mine[16 * M + column] = sum;
        }
      }
    }
  }
}
