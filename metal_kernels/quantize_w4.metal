// quantize_w4: rows to 4 bits a number, group by group, with the bits of mx.quantize.                                week 2.3
//
//   q[n,k] = round((w[n,k] - bias[n,g]) / scale[n,g])        g = k / GROUP,  bias: the group's end that is further from 0
//
// Shapes     w [N,K]   packed [N,K/8] uint32   scales, biases [N,K/GROUP]
// Grid       one lane a packed word: GROUP / 8 neighbouring lanes share a group, a simdgroup holds whole groups
// Picture    lane  0  1  2  3 | 4 ...    each reads 8 neighbours; shuffles within | | find the group's ends; each writes its word
// Scratch    none
// Numbers    w, scales, biases of T, float in between; q comes from the scale before it is rounded to T
// Bound by   bandwidth: N K (sizeof(T) + 1/2) bytes, 2 N K / GROUP sizeof(T) of scales and biases
// Reference  tinymlx/ops/quantize.py: quantize
// Read after rms_norm.metal; new here: lanes that exchange without memory, packing

// ON_CPU: mx.quantize differs by device. Its GPU kernels take 0 as a group's upper end if all are negative, and round halves away from 0.
template <typename T, int GROUP, bool ON_CPU>
inline void quantize_w4(const device T* w, device uint* packed, device T* scales, device T* biases, uint words, uint index) {
  const bool mine = index < words;
  const size_t word = mine ? index : words - 1;  // lanes past the end take part in the shuffles
  float values[8];
  float low = w[word * 8], high = ON_CPU ? low : 0.0f;
  for (int i = 0; i < 8; i++) {
    values[i] = float(w[word * 8 + i]);
    low = min(low, values[i]);
    high = max(high, values[i]);
  }
  for (ushort mask = 1; mask < GROUP / 8; mask *= 2) {
    low = min(low, simd_shuffle_xor(low, mask));
    high = max(high, simd_shuffle_xor(high, mask));
  }

  const bool from_below = fabs(low) > fabs(high);
  const float step = max((high - low) / 15.0f, 1e-7f), edge = from_below ? low : high;
  // 0 becomes a whole number of steps from the edge, and so one of the 16 numbers, but for roundings.
  const float signed_step = from_below ? step : -step;
  const float whole = ON_CPU ? rint(edge / signed_step) : round(edge / signed_step);
  const float scale = whole == 0 ? signed_step : edge / whole, bias = whole == 0 ? 0.0f : edge;

  uint codes = 0;
  for (int i = 0; i < 8; i++) {
    const float steps = (values[i] - bias) / scale;
    codes |= uint(min(max(ON_CPU ? rint(steps) : round(steps), 0.0f), 15.0f)) << (4 * i);
  }
  if (mine) {
    packed[word] = codes;
    if (word % (GROUP / 8) == 0) {
      scales[word / (GROUP / 8)] = T(scale);
      biases[word / (GROUP / 8)] = T(bias);
    }
  }
}
