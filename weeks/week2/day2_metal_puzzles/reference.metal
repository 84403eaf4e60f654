// The answers of day 2.2: twelve small kernels.

// One thread an element.
inline void map(const device float* x, device float* y, uint i) {
  y[i] = 3 * x[i] + 1;
}

// Two inputs.
inline void zip(const device float* a, const device float* b, device float* y, uint i) {
  y[i] = a[i] * b[i];
}

// More threads than elements.
inline void guarded(const device float* x, device float* y, uint n, uint i) {
  if (i < n) {
    y[i] = max(x[i], 0.0f);
  }
}

// A grid of two dimensions.
inline void outer_sum(const device float* a, const device float* b, device float* y, uint rows, uint columns, uint2 at) {
  if (at.x < columns && at.y < rows) {
    y[at.y * columns + at.x] = a[at.y] + b[at.x];
  }
}

// Neighbours through threadgroup memory; the first and the last thread also bring the tile's borders.
inline void stencil(const device float* x, device float* y, uint n, uint i, uint rank, uint width, threadgroup float* tile) {
  tile[rank + 1] = i < n ? x[i] : 0;
  if (rank == 0) {
    tile[0] = i > 0 ? x[i - 1] : 0;
  }
  if (rank == width - 1) {
    tile[width + 1] = i + 1 < n ? x[i + 1] : 0;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i < n) {
    y[i] = (tile[rank] + tile[rank + 1] + tile[rank + 2]) / 3;
  }
}

// 32 lanes a row.
inline void simd_total(const device float* x, device float* y, uint K, uint row, uint lane) {
  float total = 0;
  for (uint k = lane; k < K; k += 32) {
    total += x[row * K + k];
  }
  total = simd_sum(total);
  if (lane == 0) {
    y[row] = total;
  }
}

// Several simdgroups a row.
inline void block_total(
    const device float* x, device float* y, uint K, uint row, uint rank, uint lane, uint simdgroup, uint simdgroups,
    threadgroup float* partial) {
  float total = 0;
  for (uint k = rank; k < K; k += 32 * simdgroups) {
    total += x[row * K + k];
  }
  total = simd_sum(total);
  if (lane == 0) {
    partial[simdgroup] = total;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0) {
    total = simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
    if (lane == 0) {
      y[row] = total;
    }
  }
}

// Reads rows and writes rows; the turn happens in the tile, 17 floats apart.
template <typename X, typename Y>
inline void transposed(X x, Y y, uint rows, uint columns, uint2 group, uint2 at, threadgroup float* tile) {
  const uint row = group.y * 16 + at.y, column = group.x * 16 + at.x;
  if (row < rows && column < columns) {
    tile[at.y * 17 + at.x] = x[row * columns + column];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint new_row = group.x * 16 + at.y, new_column = group.y * 16 + at.x;
  if (new_row < columns && new_column < rows) {
    y[new_row * rows + new_column] = tile[at.x * 17 + at.y];
  }
}

// Sums of 1, 2, 4, ... numbers up to each.
inline void scan(const device float* x, device float* y, uint K, uint row, uint rank, uint width, threadgroup float* tile) {
  tile[rank] = rank < K ? x[row * K + rank] : 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint step = 1; step < width; step *= 2) {
    const float before = rank >= step ? tile[rank - step] : 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    tile[rank] += before;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (rank < K) {
    y[row * K + rank] = tile[rank];
  }
}

// Many threads, 16 counters.
inline void histogram(
    const device uint* codes, device uint* counts, uint n, uint rank, uint width, threadgroup atomic_uint* bins) {
  if (rank < 16) {
    atomic_store_explicit(&bins[rank], 0u, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = rank; i < n; i += width) {
    atomic_fetch_add_explicit(&bins[codes[i]], 1u, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (rank < 16) {
    counts[rank] = atomic_load_explicit(&bins[rank], memory_order_relaxed);
  }
}

// Tiles of 16 x 16 of both factors, each number of which 16 threads use.
inline void product(
    const device float* a, const device float* b, device float* c, uint M, uint N, uint K, uint2 group, uint2 at,
    threadgroup float* left, threadgroup float* right) {
  const uint row = group.y * 16 + at.y, column = group.x * 16 + at.x;
  float total = 0;
  for (uint k = 0; k < K; k += 16) {
    left[at.y * 16 + at.x] = row < M && k + at.x < K ? a[row * K + k + at.x] : 0;
    right[at.y * 16 + at.x] = column < N && k + at.y < K ? b[(k + at.y) * N + column] : 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint j = 0; j < 16; j++) {
      total += left[at.y * 16 + j] * right[j * 16 + at.x];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (row < M && column < N) {
    c[row * N + column] = total;
  }
}

// The row's maximum, then its sum of exponentials, both over four simdgroups.
inline void softmax(
    const device float* x, device float* y, uint K, uint row, uint rank, uint lane, uint simdgroup, threadgroup float* partial) {
  const device float* of_row = x + row * K;
  float highest = -INFINITY;
  for (uint k = rank; k < K; k += 128) {
    highest = max(highest, of_row[k]);
  }
  highest = simd_max(highest);
  if (lane == 0) {
    partial[simdgroup] = highest;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  highest = max(max(partial[0], partial[1]), max(partial[2], partial[3]));
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float total = 0;
  for (uint k = rank; k < K; k += 128) {
    total += exp(of_row[k] - highest);
  }
  total = simd_sum(total);
  if (lane == 0) {
    partial[simdgroup] = total;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  total = partial[0] + partial[1] + partial[2] + partial[3];
  for (uint k = rank; k < K; k += 128) {
    y[row * K + k] = exp(of_row[k] - highest) / total;
  }
}
