// Eight neighbouring numbers as floats, in one or two loads of 16 bytes. The address must be a multiple of 16.

inline void load8(const device float* from, thread float* to) {
  const uint4 low = *(const device uint4*)from, high = *(const device uint4*)(from + 4);
  to[0] = as_type<float>(low.x), to[1] = as_type<float>(low.y), to[2] = as_type<float>(low.z), to[3] = as_type<float>(low.w);
  to[4] = as_type<float>(high.x), to[5] = as_type<float>(high.y), to[6] = as_type<float>(high.z), to[7] = as_type<float>(high.w);
}

inline void load8(const device bfloat* from, thread float* to) {  // a bfloat is the upper half of a float
  const uint4 all = *(const device uint4*)from;
  to[0] = as_type<float>(all.x << 16), to[1] = as_type<float>(all.x & 0xffff0000u);
  to[2] = as_type<float>(all.y << 16), to[3] = as_type<float>(all.y & 0xffff0000u);
  to[4] = as_type<float>(all.z << 16), to[5] = as_type<float>(all.z & 0xffff0000u);
  to[6] = as_type<float>(all.w << 16), to[7] = as_type<float>(all.w & 0xffff0000u);
}

inline void load8(const device half* from, thread float* to) {
  const uint4 all = *(const device uint4*)from;
  const uint words[4] = {all.x, all.y, all.z, all.w};
  for (int i = 0; i < 4; i++) {
    to[2 * i] = float(as_type<half>(ushort(words[i] & 0xffffu)));
    to[2 * i + 1] = float(as_type<half>(ushort(words[i] >> 16)));
  }
}

template <typename T>
struct alignas(16) Eight {
  T values[8];
};
