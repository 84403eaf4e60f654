// Threadgroup memory is not zero when a kernel begins.
//
// caught by: TestTask10Histogram::test_counts

inline void histogram(
    const device uint* codes, device uint* counts, uint n, uint rank, uint width, threadgroup atomic_uint* bins) {
  for (uint i = rank; i < n; i += width) {
    atomic_fetch_add_explicit(&bins[codes[i]], 1u, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (rank < 16) {
    counts[rank] = atomic_load_explicit(&bins[rank], memory_order_relaxed);
  }
}
