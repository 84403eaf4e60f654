// w4_dot: y = W x, eight 4-bit weights a word, a scale and a bias for every 32; one simdgroup a row.
template <typename T>
void w4_dot(const device uint* w, const device T* scales, const device T* biases, const device T* x, device T* y,
            uint K, uint row, uint lane) {
  float sum = 0;
  for (uint word = lane; word < K / 8; word += 32) {
    uint packed = w[row * (K / 8) + word];
    uint group = row * (K / 32) + word / 4;
    float scale = float(scales[group]), bias = float(biases[group]);
    for (uint i = 0; i < 8; i++) {
      uint q = (packed >> (4 * i)) & 0xf;
      sum += (scale * float(q) + bias) * float(x[8 * word + i]);
    }
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    y[row] = T(sum);
  }
}
