// Runs a kernel's threadgroups one after another: a fiber for each thread, switched where threads meet.
//
// A thread runs until it meets others (a collective, a barrier) or ends. When all lanes of a group wait at one place
// they go on; when no thread can go on and some still wait, the kernel diverged, and the launch ends with a message.
#include "runtime.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

extern "C" void host_switch(void** save, void* load) asm("host_switch");

namespace host {
namespace {
constexpr int max_threads = 1024, lanes_per_simdgroup = 32;
constexpr size_t stack_bytes = 128 << 10, page = 16384;

enum State { ready, waiting, done };
struct Stack {
  void* sp;
  Stack* next;
};
struct Thread {
  Stack* stack;
  State state;
  Group group;
  int flags;  // of a barrier; -1 for a collective
  const char* name;
  Site site;
  unsigned meetings[2];  // at a quad's and a simdgroup's collectives so far: which of two slots is next
};

struct Launch {
  void (*entry)(void**, const Attributes&);
  void** buffers;
  Attributes attributes;  // what is the same for all threads of a threadgroup
};

Launch launch;
Thread threads[max_threads];
Stack stacks[max_threads];
Stack* free_stacks;
char* stack_memory;
Slots* slots;  // two for each simdgroup, then two for each quad
void* scheduler_sp;
int now;             // the thread that runs
int thread_count;    // in this threadgroup
unsigned group_now;  // threadgroup, counted from 0 along the grid
uint64_t random_state;
char message[512];
constexpr size_t slots_bytes = sizeof(Slots) * 2 * (max_threads / 32 + max_threads / 4);

// Order of memory: how many barriers of the threadgroup, and of each simdgroup, have fenced device (0) and threadgroup
// (1) memory.
unsigned epochs[2], simd_epochs[max_threads / lanes_per_simdgroup][2];

uint32_t draw(uint32_t below) {
  random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
  return uint32_t(random_state >> 32) % below;
}

#ifdef HOST_CHECK
void diverged(bool at_barrier, int thread, int other);
#else
void diverged(bool, int thread, int other) {
  const Thread &a = threads[thread], &b = threads[other];
  snprintf(message, sizeof message, "%s:%d: thread %d waits at %s, and thread %d %s%s (line %d) in threadgroup %u",
           a.site.file, a.site.line, thread, a.name, other, b.state == done ? "has ended" : "waits at ",
           b.state == done ? "" : b.name, b.state == done ? a.site.line : b.site.line, group_now);
}
#endif

// Fibers

void fiber_main() {
  for (;;) {
    Attributes mine = launch.attributes;
    const Axes size = mine.threads_per_threadgroup;
    unsigned t = now, x = t % size.x, y = t / size.x % size.y, z = t / (size.x * size.y);
    const Axes group = mine.threadgroup_position_in_grid, full = mine.dispatch_threads_per_threadgroup;
    mine.thread_position_in_threadgroup = {x, y, z};
    mine.thread_position_in_grid = {group.x * full.x + x, group.y * full.y + y, group.z * full.z + z};
    mine.thread_index_in_threadgroup = {t, 0, 0};
    mine.thread_index_in_simdgroup = {t % 32, 0, 0};
    mine.simdgroup_index_in_threadgroup = {t / 32, 0, 0};
    mine.thread_index_in_quadgroup = {t % 4, 0, 0};
    mine.quadgroup_index_in_threadgroup = {t / 4, 0, 0};
    launch.entry(launch.buffers, mine);
    threads[now].state = done;
    host_switch(&threads[now].stack->sp, scheduler_sp);
  }
}

void prepare(Stack& stack) {
  size_t i = &stack - stacks;
  // Stacks that begin at one distance from each other would fight for the same few lines of the cache.
  char* top = stack_memory + (i + 1) * stack_bytes - i * 576 % 32768;
#if defined(__x86_64__)
  void** sp =
      (void**)(top - 64);  // six saved registers and the address that `ret` takes; then 8 bytes off 16, as after a call
  memset(sp, 0, 64);
  sp[6] = (void*)fiber_main;
#elif defined(__aarch64__)
  void** sp = (void**)(top - 160);
  memset(sp, 0, 160);
  sp[11] = (void*)fiber_main;  // x30
#endif
  stack.sp = sp;
  stack.next = free_stacks;
  free_stacks = &stack;
}

bool reserve() {
  size_t bytes = max_threads * stack_bytes + slots_bytes;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  stack_memory = (char*)memory;
  slots = (Slots*)(stack_memory + max_threads * stack_bytes);
  for (int i = 0; i < max_threads; i++)
    mprotect(stack_memory + i * stack_bytes, page, PROT_NONE);  // an overflow faults
  return true;
}

void go_on(int t) {
  Thread& thread = threads[t];
  if (!thread.stack) {
    thread.stack = free_stacks;
    free_stacks = free_stacks->next;
  }
  now = t;
  host_switch(&scheduler_sp, thread.stack->sp);
  if (thread.state == done) {  // its stack serves the next thread, warm in the cache
    thread.stack->next = free_stacks;
    free_stacks = thread.stack;
    thread.stack = nullptr;
  }
}

void wait_for(Group group, int flags, const char* name, Site site) {
  Thread& me = threads[now];
  me.state = waiting;
  me.group = group;
  me.flags = flags;
  me.name = name;
  me.site = site;
  host_switch(&me.stack->sp, scheduler_sp);
}

bool same(const char* a, const char* b) { return a == b || !strcmp(a, b); }

bool same_place(const Thread& a, const Thread& b) {
  return b.state == waiting && a.group == b.group && a.site.line == b.site.line && same(a.name, b.name) &&
         same(a.site.file, b.site.file);
}

// The member of the group [first, last) that does not wait where `t` waits; -1 when all do.
int straggler(int t, int first, int last) {
  for (int i = first; i < last; i++)
    if (!same_place(threads[t], threads[i])) return i;
  return -1;
}

long smaller(long a, long b) { return a < b ? a : b; }

// Lets every lane of the simdgroup that can run do so, and completes meetings. True when some lane can run again.
bool step(int first, int schedule) {
  int last = smaller(first + lanes_per_simdgroup, thread_count), count = last - first;
  int start = schedule > 1 ? draw(count) : 0, stride = schedule == 1 ? -1 : 1;
  for (int k = 0; k < count; k++) {
    int t = first + (schedule == 1 ? count - 1 - k : (start + stride * k) % count);
    if (threads[t].state == ready) go_on(t);
    if (message[0]) return false;
  }
  bool again = false;
  for (int t = first; t < last; t++) {
    Thread& thread = threads[t];
    if (thread.state != waiting || thread.group == whole_threadgroup) continue;
    int begin = t / thread.group * thread.group, end = smaller(begin + thread.group, thread_count);
    if (straggler(t, begin, end) >= 0) continue;
    if (thread.flags >= 0)
      for (int space = 0; space < 2; space++)
        simd_epochs[first / lanes_per_simdgroup][space] += thread.flags >> space & 1;
    for (int i = begin; i < end; i++) threads[i].state = ready;
    again = true;
  }
  if (again) return true;
  for (int t = first; t < last; t++) {
    const Thread& thread = threads[t];
    if (thread.state != waiting || thread.group == whole_threadgroup) continue;
    int begin = t / thread.group * thread.group;
    diverged(thread.flags >= 0, t, straggler(t, begin, smaller(begin + thread.group, thread_count)));
    return false;
  }
  return false;
}

bool run_threadgroup(int schedule) {
  int simdgroups = (thread_count + lanes_per_simdgroup - 1) / lanes_per_simdgroup;
  for (int t = 0; t < thread_count; t++) threads[t] = {};
  int order[max_threads / lanes_per_simdgroup];
  for (;;) {
    for (int i = 0; i < simdgroups; i++) order[i] = schedule == 1 ? simdgroups - 1 - i : i;
    if (schedule > 1)
      for (int i = simdgroups - 1; i > 0; i--) {
        int j = draw(i + 1), kept = order[i];
        order[i] = order[j], order[j] = kept;
      }
    bool again = false;
    for (int i = 0; i < simdgroups; i++) {
      bool more = step(order[i] * lanes_per_simdgroup, schedule);
      while (more && schedule < 2 && !message[0]) more = step(order[i] * lanes_per_simdgroup, schedule);
      if (message[0]) return false;
      again |= more;
    }
    if (again) continue;
    int waits = -1;
    for (int t = 0; t < thread_count && waits < 0; t++)
      if (threads[t].state == waiting) waits = t;
    if (waits < 0) return true;
    int other = straggler(waits, 0, thread_count);
    if (other >= 0) return diverged(true, waits, other), false;
    for (int space = 0; space < 2; space++) epochs[space] += threads[waits].flags >> space & 1;
    for (int t = 0; t < thread_count; t++) threads[t].state = ready;
  }
}

// 0: forwards, 1: backwards, from 2 on: random with this seed. False: `message` says why the launch ended early.
bool run_grid(void (*entry)(void**, const Attributes&), void** buffers, const unsigned* grid, const unsigned* wanted,
              int schedule) {
  message[0] = 0;
  if (!stack_memory && !reserve()) return snprintf(message, sizeof message, "no memory for the threads' stacks"), false;
  free_stacks = nullptr;
  for (int i = max_threads - 1; i >= 0; i--) prepare(stacks[i]);
  random_state = 0x9e3779b97f4a7c15u * (schedule + 1);
  unsigned size[3], groups[3];
  for (int i = 0; i < 3; i++) {
    size[i] = wanted[i] < grid[i] ? wanted[i] : grid[i];  // as MLX does
    if (size[i] == 0) return true;
    groups[i] = (grid[i] + size[i] - 1) / size[i];
  }
  launch = {entry, buffers, {}};
  Attributes& a = launch.attributes;
  a.threads_per_grid = a.grid_size = {grid[0], grid[1], grid[2]};
  a.dispatch_threads_per_threadgroup = {size[0], size[1], size[2]};
  a.threadgroups_per_grid = {groups[0], groups[1], groups[2]};
  a.threads_per_simdgroup = a.thread_execution_width = {32, 1, 1};
  unsigned full = size[0] * size[1] * size[2], total = groups[0] * groups[1] * groups[2];
  a.dispatch_simdgroups_per_threadgroup = {(full + 31) / 32, 1, 1};
  a.dispatch_quadgroups_per_threadgroup = {(full + 3) / 4, 1, 1};
  unsigned shift = schedule > 1 ? draw(total) : 0;
  for (unsigned i = 0; i < total; i++) {
    unsigned g = schedule == 1 ? total - 1 - i : (i + shift) % total;
    unsigned at[3] = {g % groups[0], g / groups[0] % groups[1], g / (groups[0] * groups[1])}, here[3];
    for (int k = 0; k < 3; k++)
      here[k] = grid[k] - at[k] * size[k] < size[k] ? grid[k] - at[k] * size[k] : size[k];  // ragged edge
    a.threadgroup_position_in_grid = {at[0], at[1], at[2]};
    a.threads_per_threadgroup = {here[0], here[1], here[2]};
    thread_count = here[0] * here[1] * here[2];
    a.simdgroups_per_threadgroup = {unsigned(thread_count + 31) / 32, 1, 1};
    a.quadgroups_per_threadgroup = {unsigned(thread_count + 3) / 4, 1, 1};
    group_now = g;
    if (!run_threadgroup(schedule)) return false;
  }
  return true;
}
}  // namespace

// What kernels call

Slots& meet(const void* value, int bytes, Group group, const char* name, Site site) {
  int first = now / group * group;
  Thread& me = threads[now];
  unsigned turn = me.meetings[group == simdgroup]++ & 1;
  Slots& mine = slots[group == simdgroup ? 2 * (now / 32) + turn : 2 * (max_threads / 32 + now / 4) + turn];
  memcpy(mine.lane[now - first], value, bytes);
  mine.reduced = false;
  wait_for(group, -1, name, site);
  mine.lanes = smaller(group, thread_count - first);
  mine.me = now - first;
  return mine;
}

void barrier(Group group, int flags, Site site) {
  wait_for(group, flags, group == simdgroup ? "simdgroup_barrier" : "threadgroup_barrier", site);
}

int lane(Group group) { return now % group; }

#ifndef HOST_CHECK
void missing_lane(const char*, int, Site) {}
void atomic_access(const void*, int, bool, bool) {}
void declare_scratch(const void*, unsigned long, const char*, const char*, int) {}
#endif
}  // namespace host

#ifndef HOST_CHECK
// Runs the kernel in this process. Null when it came to its end, else why not; valid until the next run.
extern "C" const char* host_run(void (*entry)(void**, const host::Attributes&), void** buffers, const unsigned* grid,
                                const unsigned* threadgroup, int schedule) {
  return host::run_grid(entry, buffers, grid, threadgroup, schedule) ? nullptr : host::message;
}
#endif

#if defined(__x86_64__)
asm(R"(
.text
.globl host_switch
host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl host_switch
host_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#else
#error "no fiber switch for this CPU: x86-64 and aarch64 have one"
#endif
