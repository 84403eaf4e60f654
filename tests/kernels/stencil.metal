// stencil: y[i] = x[i-1] + x[i] + x[i+1], zero outside; a block and its two neighbours in threadgroup memory.
template <int BLOCK>
void stencil(const device float* x, device float* y, uint n, uint i, uint t, threadgroup float* block) {
  block[t + 1] = i < n ? x[i] : 0.0f;
  if (t == 0) block[0] = i > 0 ? x[i - 1] : 0.0f;
  if (t == BLOCK - 1) block[BLOCK + 1] = i + 1 < n ? x[i + 1] : 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i < n) {
    y[i] = block[t] + block[t + 1] + block[t + 2];
  }
}
