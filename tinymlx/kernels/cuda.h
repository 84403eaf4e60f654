// What our Metal kernels need of Metal, in CUDA's words: the `header` of mx.fast.cuda_kernel. A simdgroup is a warp.
//
// Threadgroup variables stand in a kernel's body, where `threadgroup` is written as __shared__; in the signature of a function the word
// says what a pointer points to, and CUDA finds that out by itself. In the place of simdgroup_matrix stands what include/fragment.metal
// makes of it.

using uint = unsigned int;
using ushort = unsigned short;
using uchar = unsigned char;
using half = __half;
using bfloat = __nv_bfloat16;

#define device
#define constant
#define thread
#define threadgroup
#define inline __device__ inline

enum class mem_flags { mem_none, mem_device, mem_threadgroup };

__device__ __forceinline__ void threadgroup_barrier(mem_flags) { __syncthreads(); }
__device__ __forceinline__ void simdgroup_barrier(mem_flags) { __syncwarp(); }

template <typename T>
__device__ __forceinline__ T simd_shuffle_xor(T value, ushort mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
template <typename T>
__device__ __forceinline__ T simd_shuffle(T value, ushort lane) { return __shfl_sync(0xffffffffu, value, lane); }
template <typename T>
__device__ __forceinline__ T simd_shuffle_down(T value, ushort delta) { return __shfl_down_sync(0xffffffffu, value, delta); }
template <typename T>
__device__ __forceinline__ T simd_broadcast(T value, ushort lane) { return __shfl_sync(0xffffffffu, value, lane); }

template <typename T>
__device__ __forceinline__ T simd_sum(T value) {
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
  return value;
}
template <typename T>
__device__ __forceinline__ T simd_max(T value) {
  for (int mask = 16; mask > 0; mask /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, mask));
  return value;
}
template <typename T>
__device__ __forceinline__ T simd_min(T value) {
  for (int mask = 16; mask > 0; mask /= 2) value = min(value, __shfl_xor_sync(0xffffffffu, value, mask));
  return value;
}

template <typename To, typename From>
__device__ __forceinline__ To as_type(From value) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the bits");
  To result;
  memcpy(&result, &value, sizeof(To));
  return result;
}

namespace precise {
__device__ __forceinline__ float cos(float x) { return ::cosf(x); }
__device__ __forceinline__ float sin(float x) { return ::sinf(x); }
}  // namespace precise

// include/fragment.metal with the layout and the rounding of tensor cores (PTX ISA, mma.m16n8k16).
#define FRAGMENTS

__device__ __forceinline__ uint fragment_row(uint lane) { return lane / 4; }
__device__ __forceinline__ uint fragment_column(uint lane) { return lane % 4 * 2; }
__device__ __forceinline__ uint right_row(uint lane, int j) { return lane % 4 * 2 + j; }
__device__ __forceinline__ uint right_column(uint lane, int) { return lane / 4; }

template <typename T>
struct Pair {
  uint bits;
};

template <typename T>
constexpr bool is_bfloat = false;
template <>
constexpr bool is_bfloat<bfloat> = true;

__device__ __forceinline__ uint bits_of(__nv_bfloat162 two) { return as_type<uint>(two); }
__device__ __forceinline__ uint bits_of(__half2 two) { return as_type<uint>(two); }

template <typename T>
__device__ __forceinline__ Pair<T> pair(T first, T second) {
  if constexpr (is_bfloat<T>) {
    return {bits_of(__halves2bfloat162(first, second))};
  } else {
    return {bits_of(__halves2half2(first, second))};
  }
}
template <typename T>
__device__ __forceinline__ Pair<T> pair(float first, float second) {
  if constexpr (is_bfloat<T>) {
    return {bits_of(__floats2bfloat162_rn(first, second))};
  } else {
    return {bits_of(__floats2half2_rn(first, second))};
  }
}

template <int BITS, bool MX>
__device__ float number(uint word, int i);

template <typename T, int BITS, bool MX>
constexpr bool has_magic = BITS == 4 && !MX && sizeof(T) == 2;

// Four bits each in the low mantissas of two bfloats of 128, or of two halves of 1024.
template <typename T, int BITS, bool MX>
__device__ __forceinline__ Pair<T> packed_pair(uint word, uint next, int t) {
  if constexpr (has_magic<T, BITS, MX>) {
    return {(word >> (4 * t) & 0x000f000fu) | (is_bfloat<T> ? 0x43004300u : 0x64006400u)};
  } else {
    return pair<T>(number<BITS, MX>(word, t), BITS == 8 ? number<BITS, MX>(next, t) : number<BITS, MX>(word, (t + 4) % 8));
  }
}
template <typename T, int BITS, bool MX>
__device__ __forceinline__ float packed_offset() { return has_magic<T, BITS, MX> ? (is_bfloat<T> ? 128 : 1024) : 0; }

__device__ __forceinline__ void column_sums(float (&value)[2]) {
  float sum = value[0] + value[1];
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  value[0] = value[1] = sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}
__device__ __forceinline__ float of_columns(float value, uint lane, uint p) { return __shfl_sync(0xffffffffu, value, lane / 4 * 4 + p); }

template <typename T>
__device__ __forceinline__ void multiply(float (&sum)[2][2], Pair<T> (&left)[2][2], Pair<T> (&right)[2]) {
#define MULTIPLY(TYPE)                                                                                                           \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(sum[0][0]), "+f"(sum[0][1]), "+f"(sum[1][0]), "+f"(sum[1][1])                                                        \
      : "r"(left[0][0].bits), "r"(left[1][0].bits), "r"(left[0][1].bits), "r"(left[1][1].bits), "r"(right[0].bits), "r"(right[1].bits))
  if constexpr (is_bfloat<T>) {
    MULTIPLY("bf16");
  } else {
    MULTIPLY("f16");
  }
#undef MULTIPLY
}
