// map: y = a x + b, four values a thread.
template <typename T>
void map_row(const device T* x, float a, float b, device T* y, uint n, uint thread_id) {
  uint first = 4 * thread_id;
  if (first + 4 <= n) {
    vec<T, 4> v = *(const device vec<T, 4>*)(x + first);
    float4 scaled = a * float4(v) + b;
    *(device vec<T, 4>*)(y + first) = vec<T, 4>(scaled);
  } else {
    for (uint i = first; i < n; i++) y[i] = T(a * float(x[i]) + b);
  }
}
