// Casts the atomic away: two threads read 5, and both write 6.
//
// caught by: TestTask10Histogram::test_counts

inline void histogram(
    const device uint* codes, device uint* counts, uint n, uint rank, uint width, threadgroup atomic_uint* bins) {
  if (rank < 16) {
    atomic_store_explicit(&bins[rank], 0u, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = rank; i < n; i += width) {
    ((threadgroup uint*)bins)[codes[i]] += 1;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (rank < 16) {
    counts[rank] = atomic_load_explicit(&bins[rank], memory_order_relaxed);
  }
}
