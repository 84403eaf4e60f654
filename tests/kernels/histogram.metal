// histogram: counts of 16 bins, first in threadgroup memory, then added to the whole.
void histogram(const device int* x, device atomic<uint>* counts, uint n, uint i, uint t, uint threads,
               threadgroup atomic<uint>* mine) {
  for (uint bin = t; bin < 16; bin += threads) {
    atomic_store_explicit(&mine[bin], 0u, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i < n) {
    atomic_fetch_add_explicit(&mine[x[i] & 15], 1u, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint bin = t; bin < 16; bin += threads) {
    uint count = atomic_load_explicit(&mine[bin], memory_order_relaxed);
    atomic_fetch_add_explicit(&counts[bin], count, memory_order_relaxed);
  }
}
