// dot.metal on the matrix units: left is 16 rows of the weight, right up to 16 rows of x as columns.
//
//   k of a group   0 .. GROUP/4 - 1 | .. GROUP/2 - 1 | .. 3 GROUP/4 - 1 | .. GROUP - 1     a lane unpacks a quarter of a group of
//   columns             0, 1        |      2, 3      |       4, 5       |    6, 7          a row; x follows in the same order

#include "fragment.metal"

// AHEAD neighbouring scales or biases of a row, zero behind its last group.
template <typename S, int AHEAD>
struct alignas(sizeof(S) * AHEAD > 16 ? 16 : sizeof(S) * AHEAD) Several {
  S values[AHEAD];
};

template <int AHEAD, typename S>
inline Several<S, AHEAD> several(const device S* row, uint first, uint groups, bool active) {
  Several<S, AHEAD> found;
  if (groups % AHEAD == 0 && active && first < groups) {
    return *(const device Several<S, AHEAD>*)(row + first);
  }
  for (int i = 0; i < AHEAD; i++) {
    found.values[i] = active && first + i < groups ? row[first + i] : S(0);
  }
  return found;
}

// mine[n * M + m] becomes the product of row m of x and row n of the tile, OUTPUTS / 2 of `a` from a_row on and then as many of `b`
// from b_row on; with NORM x is multiplied by `weight` first, rounded to T, and mine[OUTPUTS * M + m] is the sum of x^2. The simdgroup
// takes its share of the groups. Columns from M on repeat the last row of x, and are not kept.
template <typename T, int M, int GROUP, int BITS, bool MX, bool NORM, int OUTPUTS, typename V, typename S>
inline void dot_matrix(
    const device T* x, V weight, Packed<S> a, uint a_row, Packed<S> b, uint b_row, uint K, uint N, uint split, uint splits, uint lane,
    threadgroup float* mine) {
  const int TILES = (M + 7) / 8, HALVES = OUTPUTS / 8, EIGHTS = GROUP / 32, WORDS = BITS / 4;  // eights of numbers a lane, words an eight
  const int AHEAD = OUTPUTS == 16 ? 256 / GROUP : 128 / GROUP;                                 // groups at a time
  const bool ALONE = M <= 2;  // then only the first lane of a row has sums that count, and needs the scale
  const uint groups = K / GROUP, row = fragment_row(lane), quarter = fragment_column(lane) / 2;
  float total[TILES][HALVES][2], squares[TILES][2];
  for (int tile = 0; tile < TILES; tile++) {
    for (int j = 0; j < 2; j++) {
      for (int h = 0; h < HALVES; h++) {
        total[tile][h][j] = 0;
      }
      squares[tile][j] = 0;
    }
  }
  Pair<T> ones[2][2];
  for (int i = 0; i < 2; i++) {
    for (int k = 0; k < 2; k++) {
      ones[i][k] = pair<T>(1.0f, 1.0f);
    }
  }

  for (uint block = split * AHEAD; block < groups && a_row < N; block += splits * AHEAD) {
    uint packed[AHEAD][HALVES][EIGHTS * WORDS];
    Several<S, AHEAD> scales[HALVES], biases[HALVES];
    for (int h = 0; h < HALVES; h++) {  // all loads first: they are under way while the first is waited for
      const Packed<S> from = h < HALVES / 2 ? a : b;
      const uint n = (h < HALVES / 2 ? a_row + h * 8 : b_row + (h - HALVES / 2) * 8) + row;
      for (int ahead = 0; ahead < AHEAD; ahead++) {
        const bool active = n < N && block + ahead < groups;
        const device uint* at = from.words + ((n * groups + block + ahead) * 4 + quarter) * (EIGHTS * WORDS);
        for (int i = 0; i < EIGHTS * WORDS; i += 4) {
          if (EIGHTS * WORDS == 1) {
            packed[ahead][h][0] = active ? at[0] : 0u;
          } else if (EIGHTS * WORDS == 2) {
            const uint2 two = active ? *(const device uint2*)at : uint2{0, 0};
            packed[ahead][h][0] = two.x;
            packed[ahead][h][EIGHTS * WORDS - 1] = two.y;
          } else {
            const uint4 four = active ? *(const device uint4*)(at + i) : uint4{0, 0, 0, 0};
            packed[ahead][h][i] = four.x;
            packed[ahead][h][i + 1] = four.y;
            packed[ahead][h][i + 2] = four.z;
            packed[ahead][h][i + 3] = four.w;
          }
        }
      }
      if (ALONE || MX) {
        scales[h] = several<AHEAD>(from.scales + n * groups, block, groups, n < N && quarter == 0);
        biases[h] = several<AHEAD>(from.biases + n * groups, block, groups, n < N && quarter == 0 && !MX);
      } else {  // the first lane of a row reads scales, the second biases
        scales[h] = several<AHEAD>((quarter == 0 ? from.scales : from.biases) + n * groups, block, groups, n < N && quarter < 2);
      }
    }
    for (int ahead = 0; ahead < AHEAD; ahead++) {
      const uint group = min(block + ahead, groups - 1);
      Pair<T> right[TILES][EIGHTS][4];
      for (int tile = 0; tile < TILES; tile++) {
        for (int eight = 0; eight < EIGHTS; eight++) {
          T element[2][4];
          for (int j = 0; j < 2; j++) {
            const uint m = min(tile * 8 + right_column(lane, j), uint(M) - 1);
            const uint k = (group * 4 + right_row(lane, j) / 2) * (GROUP / 4) + eight * 8;
            const bool second = right_row(lane, j) % 2 == 1;  // of the numbers t and t + 4
            const Eight<T> values = *(const device Eight<T>*)(x + m * K + k);
            for (int t = 0; t < 4; t++) {
              element[j][t] = second ? values.values[t + 4] : values.values[t];
            }
            if (NORM) {
              float weights[8];
              load8(weight + k, weights);
              for (int t = 0; t < 4; t++) {
                const float value = float(element[j][t]);
                squares[tile][j] += block + ahead < groups ? value * value : 0.0f;
                element[j][t] = T(value * (second ? weights[t + 4] : weights[t]));
              }
            }
          }
          for (int t = 0; t < 4; t++) {
            right[tile][eight][t] = pair<T>(element[0][t], element[1][t]);
          }
        }
      }
      float sum[TILES][HALVES / 2][2][2], sums[TILES][2][2];  // products with the packed numbers, and with ones
      for (int tile = 0; tile < TILES; tile++) {
        for (int i = 0; i < 2; i++) {
          for (int j = 0; j < 2; j++) {
            for (int h = 0; h < HALVES / 2; h++) {
              sum[tile][h][i][j] = 0;
            }
            sums[tile][i][j] = 0;
          }
        }
      }
      for (int eight = 0; eight < EIGHTS; eight++) {
        for (int step = 0; step < 2; step++) {
          for (int tile = 0; tile < TILES && !MX; tile++) {
            Pair<T> two[2] = {right[tile][eight][step * 2], right[tile][eight][step * 2 + 1]};
            multiply(sums[tile], ones, two);
          }
          for (int h = 0; h < HALVES / 2; h++) {
            Pair<T> left[2][2];
            for (int i = 0; i < 2; i++) {
              const uint word = packed[ahead][h * 2 + i][eight * WORDS], last = packed[ahead][h * 2 + i][eight * WORDS + WORDS - 1];
              for (int k = 0; k < 2; k++) {
                left[i][k] = packed_pair<T, BITS, MX>(word, last, step * 2 + k);
              }
            }
            for (int tile = 0; tile < TILES; tile++) {
              Pair<T> two[2] = {right[tile][eight][step * 2], right[tile][eight][step * 2 + 1]};
              multiply(sum[tile][h], left, two);
            }
          }
        }
      }
      for (int h = 0; h < HALVES; h++) {
        float scale = scale_of<MX>(scales[h].values[ahead]), bias = 0;
        if (ALONE) {
          bias = MX ? 0.0f : float(biases[h].values[ahead]);
        } else {
          bias = MX ? 0.0f : of_columns(scale, lane, 1);
          scale = of_columns(scale, lane, 0);
        }
        bias -= packed_offset<T, BITS, MX>() * scale;
        for (int tile = 0; tile < TILES; tile++) {
          for (int j = 0; j < 2; j++) {
            total[tile][h][j] += scale * sum[tile][h / 2][h % 2][j] + bias * sums[tile][0][j];
          }
        }
      }
    }
  }

  for (int tile = 0; tile < TILES; tile++) {
    for (int j = 0; j < 2; j++) {
      const uint m = tile * 8 + fragment_column(lane) + j;
      for (int h = 0; h < HALVES && m < uint(M); h++) {
        mine[(h * 8 + row) * M + m] = total[tile][h][j];
      }
    }
    if (NORM) {
      column_sums(squares[tile]);
      for (int j = 0; j < 2; j++) {
        const uint column = tile * 8 + right_column(lane, j);
        if (right_row(lane, 0) == 0 && column < uint(M)) {
          mine[OUTPUTS * M + column] = squares[tile][j];
        }
      }
    }
  }
}
