// What our Metal kernels need of Metal, in CUDA's words: the `header` of mx.fast.cuda_kernel. A simdgroup is a warp.
//
// Threadgroup variables stand in a kernel's body, where `threadgroup` is written as __shared__; in the signature of a function the word
// says what a pointer points to, and CUDA finds that out by itself. simdgroup_matrix has no counterpart here.

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
