// The checking program: a kernel compiled with -fsanitize=thread, whose hooks (__tsan_*) are answered here, not by that
// tool.
//
// Every byte of an output and of threadgroup memory remembers its last write and two readers since. `job` holds the
// buffers and the launch (checker.py writes it), `report` gets one line a finding, `results` the outputs of the first
// schedule.
#define HOST_CHECK
#include "runtime.cpp"

#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

extern "C" char __executable_start, etext, end;  // of the program's image, made by the linker

namespace host {
namespace {
struct Stamp {
  unsigned group;  // threadgroup + 1; 0: never
  unsigned pc, epoch, simd_epoch;
  unsigned short thread;
  bool atomic;
};
struct Cell {
  Stamp write, read, other;  // `other`: a second reader, of another simdgroup where there is one
};
enum Kind { input, output, scratch };
struct Region {
  uintptr_t begin, end;
  Kind kind;
  bool initialised;
  const char *name, *file;
  int line;
  Cell* cells;          // outputs and scratch
  unsigned char* seen;  // a byte for each byte read
  uint64_t read, written, distinct;
};

constexpr int max_regions = 128, max_findings = 64;
Region regions[max_regions];
int region_count, last_region, finding_count, first_scratch;
unsigned found_at[max_findings][3];
FILE* report;
const char *report_name, *results_name;
bool counting;  // bytes are counted in the first schedule alone
unsigned pc_now;
unsigned char* job_data[max_regions];

void* zeros(size_t bytes) {
  void* p =
      mmap(nullptr, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) _exit(3);
  return p;
}

// One line: kind, threadgroup, then (thread, pc, file, line) twice, then name of the memory, offset in bytes, more
// words.
void finding(const char* kind, int thread, unsigned pc, Site site, int thread2, unsigned pc2, Site site2,
             const char* name, long offset, const char* words) {
  unsigned key[3] = {unsigned(kind[0] | kind[2] << 8 | kind[4] << 16), pc ? pc : unsigned(site.line),
                     pc2 ? pc2 : unsigned(site2.line)};
  for (int i = 0; i < finding_count; i++)
    if (!memcmp(found_at[i], key, sizeof key)) return;
  if (finding_count == max_findings) return;
  memcpy(found_at[finding_count++], key, sizeof key);
  fprintf(report, "finding\t%s\t%u\t%d\t%u\t%s\t%d\t%d\t%u\t%s\t%d\t%s\t%ld\t%s\n", kind, group_now, thread, pc,
          site.file ? site.file : "", site.line, thread2, pc2, site2.file ? site2.file : "", site2.line, name, offset,
          words);
}

// Leaves the kernel for good: what follows would build on what went wrong.
[[noreturn]] void stop() {
  strcpy(message, "stopped");
  host_switch(&threads[now].stack->sp, scheduler_sp);
  __builtin_unreachable();
}

Region* find(uintptr_t address) {
  const Region& last = regions[last_region];
  if (address >= last.begin && address < last.end) return &regions[last_region];
  for (int i = 0; i < region_count; i++)
    if (address >= regions[i].begin && address < regions[i].end) return &regions[last_region = i];
  return nullptr;
}

void out_of_bounds(uintptr_t address, int bytes, bool writes, unsigned pc) {
  uintptr_t image = (uintptr_t)&__executable_start;
  if (!writes && address >= image && address < (uintptr_t)&end) {
    bool guard = false;  // of a threadgroup array, which lies in the image too
    for (int i = first_scratch; i < region_count; i++)
      guard |= address + 64 >= regions[i].begin && address < regions[i].end + 64;
    if (!guard) return;  // a constant of the program, or what metal.h keeps
  }
  Region* nearest = nullptr;
  uintptr_t least = ~uintptr_t(0);
  for (int i = 0; i < region_count; i++) {
    Region& r = regions[i];
    uintptr_t distance = address < r.begin ? r.begin - address : address >= r.end ? address - r.end : 0;
    if (distance < least) least = distance, nearest = &r;
  }
  char words[64];
  snprintf(words, sizeof words, "%s\t%d\t%ld", writes ? "write" : "read", bytes,
           nearest ? long(nearest->end - nearest->begin) : 0);
  finding("out of bounds", now, pc, {}, -1, 0, {}, nearest ? nearest->name : "",
          nearest ? long(address - nearest->begin) : 0, words);
  stop();
}

bool ordered(const Stamp& s, int space) {
  if (s.group != group_now + 1) return false;  // nothing orders two threadgroups
  return s.thread == now || s.epoch < epochs[space] ||
         (s.thread / 32 == now / 32 && s.simd_epoch < simd_epochs[now / 32][space]);
}

// Two unordered writes of one value are no harm (MLX's qmv lets two simdgroups do the same rows): a write that clashes
// with a write is judged by the next event, when it has happened.
struct Pending {
  bool waits;
  uintptr_t address;
  int bytes, thread;
  unsigned group, pc;
  Stamp other;
  const Region* region;
  long offset;
  unsigned char before[64];
} pending;

void settle() {
  if (!pending.waits) return;
  pending.waits = false;
  bool same = !memcmp((void*)pending.address, pending.before, pending.bytes);
  char more[96];
  snprintf(more, sizeof more, "write\twrite\t%u", pending.other.group - 1);
  unsigned group = group_now;
  group_now = pending.group;
  finding(same ? "same value written twice" : "race", pending.thread, pending.pc, {}, pending.other.thread,
          pending.other.pc, {}, pending.region->name, pending.offset, more);
  group_now = group;
}

void diverged(bool at_barrier, int thread, int other) {
  settle();
  const Thread &a = threads[thread], &b = threads[other];
  char words[256];
  snprintf(words, sizeof words, "%s\t%s", a.name, b.state == done ? "" : b.name);
  finding(at_barrier ? "barrier divergence" : "divergent collective", thread, 0, a.site, other, 0,
          b.state == done ? Site{nullptr, 0} : b.site, "", 0, words);
  strcpy(message, "diverged");
}

void race(const Region& r, const Stamp& s, const char* words, unsigned pc, long offset) {
  char more[96];
  snprintf(more, sizeof more, "%s\t%u", words, s.group - 1);
  finding("race", now, pc, {}, s.thread, s.pc, {}, r.name, offset, more);
}

// A structure is copied whole: in an access of several words, a word that is written in part has padding.
bool padding(const Region& r, long offset, int bytes) {
  if (bytes <= 4) return false;
  long word = offset & ~3l, last = smaller(word + 4, r.end - r.begin);
  for (long k = word; k < last; k++) {
    unsigned group = r.cells[k].write.group;
    if (group && (r.kind != scratch || group == group_now + 1)) return true;
  }
  return false;
}

void touch(uintptr_t address, int bytes, bool reads, bool writes, bool atomic, unsigned pc) {
  if (address - (uintptr_t)stack_memory < max_threads * stack_bytes + slots_bytes)
    return;  // private to a thread, or the runtime's
  settle();
  pc_now = pc;
  Region* r = find(address);
  if (!r || address + bytes > r->end) return out_of_bounds(address, bytes, writes, pc);
  long offset = address - r->begin;
  if (counting) {
    r->read += reads ? bytes : 0;
    r->written += writes ? bytes : 0;
    if (reads && r->seen)
      for (int i = 0; i < bytes; i++)
        if (!r->seen[offset + i]) r->seen[offset + i] = 1, r->distinct++;
  }
  if (r->kind == input) {
    if (writes) finding("write to an input", now, pc, {}, -1, 0, {}, r->name, offset, "");
    return;
  }
  int space = r->kind == scratch;
  Stamp mine = {group_now + 1, pc, epochs[space], simd_epochs[now / 32][space], (unsigned short)now, atomic};
  for (int i = 0; i < bytes; i++) {
    Cell& c = r->cells[offset + i];
    bool fresh = space && c.write.group != mine.group;  // threadgroup memory of an earlier threadgroup says nothing
    if (fresh) c.write.group = 0;
    if (space && c.read.group != mine.group) c.read.group = c.other.group = 0;
    bool clash = c.write.group && !(atomic && c.write.atomic) && !ordered(c.write, space);
    if (clash && writes && !atomic && !c.write.atomic && !pending.waits) {
      pending = {true, address, int(smaller(bytes, 64)), now, group_now, pc, c.write, r, offset + i, {}};
      memcpy(pending.before, (void*)address, pending.bytes);
    } else if (clash && !pending.waits) {
      race(*r, c.write, writes ? reads ? "update\twrite" : "write\twrite" : "read\twrite", pc, offset + i);
    }
    if (reads && !c.write.group && !r->initialised && !padding(*r, offset + i, bytes))
      finding(space ? "uninitialised threadgroup memory" : "uninitialised output", now, pc, {}, -1, 0, {}, r->name,
              offset + i, "");
    if (writes) {
      Stamp* readers[] = {&c.read, &c.other};
      for (Stamp* s : readers)
        if (!clash && s->group && !(atomic && s->atomic) && !ordered(*s, space)) {
          race(*r, *s, "write\tread", pc, offset + i);
          break;
        }
      c.write = mine;
      c.read.group = c.other.group = 0;
    } else {
      if (!c.read.group || ordered(c.read, space))
        c.read = mine;
      else if (!c.other.group || ordered(c.other, space) || c.other.thread / 32 == c.read.thread / 32)
        c.other = mine;
    }
  }
}

void undefined(const char* what, unsigned pc) { finding(what, now, pc, {}, -1, 0, {}, "", 0, ""); }

const char* kind_of(int signal, const siginfo_t* info) {
  uintptr_t address = (uintptr_t)info->si_addr - (uintptr_t)stack_memory;
  if (signal == SIGVTALRM) return "hang";
  if (signal == SIGFPE) return "division by zero";
  return address < max_threads * stack_bytes ? "stack overflow" : "out of bounds";
}

void write_report();

void on_signal(int signal, siginfo_t* info, void* context) {
#if defined(__x86_64__)
  uintptr_t pc = ((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
#else
  uintptr_t pc = ((ucontext_t*)context)->uc_mcontext.pc;
#endif
  // A fault is where it happened; for a hang the last access to memory has a line of the kernel more surely.
  bool exact = signal != SIGVTALRM || !pc_now;
  finding(kind_of(signal, info), now, exact ? unsigned(pc) + 1 : pc_now, {}, -1, 0, {}, "", 0, "");
  write_report();
  _exit(0);
}

void watch(double seconds) {
  stack_t alternative = {};
  alternative.ss_sp = zeros(1 << 16);
  alternative.ss_size = 1 << 16;
  sigaltstack(&alternative, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGVTALRM};
  for (int s : signals) sigaction(s, &action, nullptr);
  struct itimerval limit = {};
  limit.it_value = {time_t(seconds), suseconds_t((seconds - time_t(seconds)) * 1e6)};
  setitimer(ITIMER_VIRTUAL, &limit, nullptr);  // time of its own, so that a busy machine is no hang
}

void write_report() {
  settle();
  for (int i = 0; i < region_count; i++) {
    const Region& r = regions[i];
    fprintf(report, "memory\t%d\t%s\t%ld\t%llu\t%llu\t%llu\n", r.kind, r.name, long(r.end - r.begin),
            (unsigned long long)r.read, (unsigned long long)r.distinct, (unsigned long long)r.written);
  }
  fclose(report);
}

void check_written() {
  settle();
  for (int i = 0; i < first_scratch; i++) {
    Region& r = regions[i];
    if (r.kind != output || r.initialised) continue;
    long missing = 0, first = -1;
    for (long k = 0; k < long(r.end - r.begin); k++)
      if (!r.cells[k].write.group) {
        missing++;
        if (first < 0) first = k;
      }
    char words[32];
    snprintf(words, sizeof words, "%ld", missing);
    if (missing) finding("unwritten output", -1, 0, {r.name, 1}, -1, 0, {}, r.name, first, words);
  }
}

template <class T>
T take(unsigned char*& from) {
  T value;
  memcpy(&value, from, sizeof value);
  from += sizeof value;
  return value;
}

struct Region& add(uintptr_t begin, size_t bytes, Kind kind, const char* name) {
  if (region_count == max_regions) _exit(3);
  Region& r = regions[region_count++];
  r = {begin, begin + bytes, kind, false, name, nullptr, 0, nullptr, nullptr, 0, 0, 0};
  if (kind != input) r.cells = (Cell*)zeros(bytes * sizeof(Cell));
  if (kind == input) r.seen = (unsigned char*)zeros(bytes);
  return r;
}

int run_job(unsigned char* job) {
  unsigned grid[3], threadgroup[3];
  for (unsigned& n : grid) n = take<unsigned>(job);
  for (unsigned& n : threadgroup) n = take<unsigned>(job);
  int schedules = take<int>(job), buffers = take<int>(job);
  double seconds = take<double>(job);
  static void* addresses[max_regions];
  constexpr size_t gap = 1 << 16;  // between buffers, so that an index somewhat outside meets none
  for (int i = 0; i < buffers; i++) {
    Kind kind = Kind(take<int>(job));
    int initialised = take<int>(job), name_bytes = take<int>(job);
    size_t bytes = take<uint64_t>(job);
    char* name = (char*)calloc(name_bytes + 1, 1);
    memcpy(name, job, name_bytes);
    job += name_bytes;
    unsigned char* memory = (unsigned char*)zeros(bytes + 2 * gap) + gap;
    Region& r = add((uintptr_t)memory, bytes, kind, name);
    r.initialised = kind == input || initialised;
    addresses[i] = memory;
    job_data[i] = job;
    if (r.initialised) job += bytes;
  }
  first_scratch = region_count;
  for (int schedule = 0; schedule < schedules; schedule++) {
    counting = schedule == 0;
    for (int i = 0; i < buffers; i++) {
      Region& r = regions[i];
      if (r.initialised)
        memcpy(addresses[i], job_data[i], r.end - r.begin);
      else
        memset(addresses[i], 0xcd, r.end - r.begin);
      if (r.cells) madvise(r.cells, (r.end - r.begin) * sizeof(Cell), MADV_DONTNEED);
    }
    for (int i = first_scratch; i < region_count; i++)
      madvise(regions[i].cells, (regions[i].end - regions[i].begin) * sizeof(Cell), MADV_DONTNEED);
    memset(epochs, 0, sizeof epochs);
    memset(simd_epochs, 0, sizeof simd_epochs);
    watch(seconds);
    bool ended = run_grid(host_entry, addresses, grid, threadgroup, schedule);
    if (schedule == 0 && ended) {
      FILE* results = fopen(results_name, "wb");
      for (int i = 0; i < buffers; i++)
        if (regions[i].kind == output) fwrite(addresses[i], 1, regions[i].end - regions[i].begin, results);
      fclose(results);
    }
    if (!ended) break;
    check_written();
  }
  write_report();
  return 0;
}
}  // namespace

void missing_lane(const char* name, int lane, Site site) {
  char words[96];
  snprintf(words, sizeof words, "%s\t%d", name, lane);
  finding("missing lane", now, 0, site, -1, 0, {}, "", 0, words);
}

void atomic_access(const void* address, int bytes, bool reads, bool writes) {
  touch((uintptr_t)address, bytes, reads, writes, true, unsigned((uintptr_t)__builtin_return_address(0)));
}

void declare_scratch(const void* address, unsigned long bytes, const char* name, const char* file, int line) {
  uintptr_t begin = (uintptr_t)address;
  for (int i = first_scratch; i < region_count; i++)
    if (regions[i].begin == begin) return;
  Region& r = add(begin, bytes, scratch, name);
  r.file = file, r.line = line;
  unsigned long total = 0;
  for (int i = first_scratch; i < region_count; i++) total += regions[i].end - regions[i].begin;
  char words[32];
  snprintf(words, sizeof words, "%lu", total);
  if (total > 32768) finding("over 32 KB", now, 0, {file, line}, -1, 0, {}, name, 0, words);
}
}  // namespace host

int main(int, char** arguments) {
  FILE* file = fopen(arguments[1], "rb");
  if (!file) return 2;
  fseek(file, 0, SEEK_END);
  long bytes = ftell(file);
  rewind(file);
  unsigned char* job = (unsigned char*)malloc(bytes);
  if (fread(job, 1, bytes, file) != size_t(bytes)) return 2;
  host::report = fopen(host::report_name = arguments[2], "w");
  host::results_name = arguments[3];
  return host::run_job(job);
}

// The hooks. The address they return to is the access, to within one instruction.
#define PC unsigned((uintptr_t)__builtin_return_address(0))
#define HOOKS(bytes)                                                                                        \
  void __tsan_read##bytes(void* p) { host::touch((uintptr_t)p, bytes, true, false, false, PC); }            \
  void __tsan_write##bytes(void* p) { host::touch((uintptr_t)p, bytes, false, true, false, PC); }           \
  void __tsan_unaligned_read##bytes(void* p) { host::touch((uintptr_t)p, bytes, true, false, false, PC); }  \
  void __tsan_unaligned_write##bytes(void* p) { host::touch((uintptr_t)p, bytes, false, true, false, PC); } \
  void __tsan_volatile_read##bytes(void* p) { host::touch((uintptr_t)p, bytes, true, false, false, PC); }   \
  void __tsan_volatile_write##bytes(void* p) { host::touch((uintptr_t)p, bytes, false, true, false, PC); }  \
  void __tsan_read_write##bytes(void* p) { host::touch((uintptr_t)p, bytes, true, true, false, PC); }       \
  void __tsan_unaligned_read_write##bytes(void* p) { host::touch((uintptr_t)p, bytes, true, true, false, PC); }
extern "C" {
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16) void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* p, unsigned long n) { host::touch((uintptr_t)p, int(n), true, false, false, PC); }
void __tsan_write_range(void* p, unsigned long n) { host::touch((uintptr_t)p, int(n), false, true, false, PC); }
void* __tsan_memcpy(void* to, const void* from, unsigned long n) {
  host::touch((uintptr_t)from, int(n), true, false, false, PC);
  host::touch((uintptr_t)to, int(n), false, true, false, PC);
  return memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, unsigned long n) {
  host::touch((uintptr_t)from, int(n), true, false, false, PC);
  host::touch((uintptr_t)to, int(n), false, true, false, PC);
  return memmove(to, from, n);
}
// Of -fsanitize=shift-exponent,integer-divide-by-zero,alignment
void __ubsan_handle_shift_out_of_bounds(void*, void*, void*) {
  host::undefined("shift by the width of the type or more", PC);
}
void __ubsan_handle_divrem_overflow(void*, void*, void*) {
  host::undefined("division by zero", PC);
  host::stop();
}
void __ubsan_handle_type_mismatch_v1(void*, void*) { host::undefined("misaligned pointer", PC); }
void* __tsan_memset(void* to, int value, unsigned long n) {
  host::touch((uintptr_t)to, int(n), false, true, false, PC);
  return memset(to, value, n);
}
}
