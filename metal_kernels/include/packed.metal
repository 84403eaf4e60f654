// Packed weights: numbers of BITS bits in groups of GROUP along k, each group with a scale, and a bias unless MX.
//
//   affine (4 and 8 bits)    weight = scale * q + bias         q unsigned, scales and biases [N, K/GROUP] of S
//   MX (mxfp4, groups of 32) weight = 2^(scale - 127) * q      q a float of 1 sign, 2 exponent and 1 mantissa bits, scales uchar

#include "load.metal"

template <typename S>
struct Packed {
  const device uint* words;  // [N, K * BITS / 32]
  const device S* scales;
  const device S* biases;
};

// Number i of a word of eight, i known when compiled. Where its bits lie in the mantissa of a float of the right exponent, they read
// 2^e + q without a conversion, which is slow; taking 2^e away is exact.
inline float nibble(uint word, int i) {
  const uint from = i < 5 ? word : word >> 20;
  const int at = i < 5 ? i : i - 5;
  return at == 0   ? as_type<float>((from & 0xfu) | 0x4b000000u) - 8388608.0f
         : at == 1 ? as_type<float>((from & 0xf0u) | 0x49000000u) - 524288.0f
         : at == 2 ? as_type<float>((from & 0xf00u) | 0x47000000u) - 32768.0f
         : at == 3 ? as_type<float>((from & 0xf000u) | 0x45000000u) - 2048.0f
                   : as_type<float>((from & 0xf0000u) | 0x43000000u) - 128.0f;
}

// The same in any packing.
template <int BITS, bool MX>
inline float number(uint word, int i) {
  if (MX) {  // its bits as the half's: 2^-14 of the value
    const uint q = word >> (4 * i);
    return float(as_type<half>(ushort((q & 7u) << 9 | (q & 8u) << 12)));
  }
  if (BITS == 8) {
    const uint half_word = i < 2 ? word : word >> 16;
    return i % 2 == 0 ? as_type<float>((half_word & 0xffu) | 0x4b000000u) - 8388608.0f
                      : as_type<float>((half_word & 0xff00u) | 0x47000000u) - 32768.0f;
  }
  return nibble(word, i);
}

// Eight neighbouring numbers of a lane's 32, from number 8 * eight on.
template <int BITS, bool MX>
inline void unpack8(thread uint4 (&packed)[BITS / 4], int eight, thread float (&q)[8]) {
  const int NUMBERS = 32 / BITS;
  for (int i = 0; i < 8; i++) {
    const int at = eight * (8 / NUMBERS) + i / NUMBERS;
    const uint4 four = packed[at / 4];
    const uint word = at % 4 == 0 ? four.x : at % 4 == 1 ? four.y : at % 4 == 2 ? four.z : four.w;
    q[i] = number<BITS, MX>(word, i % NUMBERS);
  }
}

template <bool MX, typename S>
inline float scale_of(S stored) {
  return MX ? as_type<float>(uint(stored) << 23) * 16384.0f : float(stored);
}
