// Between a kernel (metal.h) and what runs it (runtime.cpp).
#pragma once

#define HOST_UNCHECKED __attribute__((no_sanitize("thread", "undefined")))

namespace host {
struct Axes {
  unsigned x, y, z;
};

// Where a kernel calls a collective: taken at the call by the defaults of its parameters.
struct Site {
  const char* file;
  int line;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

// The attributes that a kernel's signature can ask for, under Metal's names.
struct Attributes {
  Axes thread_position_in_grid, thread_position_in_threadgroup, threadgroup_position_in_grid;
  Axes threads_per_threadgroup, dispatch_threads_per_threadgroup, threads_per_grid, threadgroups_per_grid, grid_size;
  Axes grid_origin, thread_index_in_threadgroup, thread_index_in_simdgroup, simdgroup_index_in_threadgroup;
  Axes simdgroups_per_threadgroup, dispatch_simdgroups_per_threadgroup, threads_per_simdgroup, thread_execution_width;
  Axes thread_index_in_quadgroup, quadgroup_index_in_threadgroup, quadgroups_per_threadgroup,
      dispatch_quadgroups_per_threadgroup;
};

enum Group { quad = 4, simdgroup = 32, whole_threadgroup = 1024 };
constexpr int slot_bytes = 64;

// One meeting of a group's lanes: what each brought, and room for what they make of it. Valid until the caller's next
// but one.
struct Slots {
  alignas(64) unsigned char lane[32][slot_bytes];
  alignas(64) unsigned char result[512];
  int lanes;  // present in the group
  int me;     // the caller's place, set anew each time a lane goes on
  bool reduced;
};

Slots& meet(const void* value, int bytes, Group group, const char* name, Site site);
void barrier(Group group, int flags, Site site);
int lane(Group group);
void missing_lane(const char* name, int lane, Site site);
void atomic_access(const void* address, int bytes, bool reads, bool writes);

// Threadgroup memory: one for all threads of the threadgroup, since one threadgroup runs at a time. Guarded on both
// sides, so that an index just outside does not land in a neighbour.
template <class T>
struct Scratch {
  alignas(64) unsigned char before[64];
  alignas(64) T value;
  alignas(64) unsigned char after[64];
};
void declare_scratch(const void* address, unsigned long bytes, const char* name, const char* file, int line);
template <class T>
inline __attribute__((always_inline)) T& declare(Scratch<T>& scratch, const char* name, const char* file, int line) {
#ifdef HOST_CHECK
  declare_scratch(&scratch.value, sizeof(T), name, file, line);
#endif
  return scratch.value;
}
}  // namespace host

// Made by compose.py for each kernel: casts the buffers and calls it as one thread.
extern "C" void host_entry(void** buffers, const host::Attributes& attributes);
