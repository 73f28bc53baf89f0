/* races.cpp: accesses of a kernel's threads that nothing orders, and shared memory that is read
 * before it is written. It stands in for the runtime of ThreadSanitizer, whose instrumentation
 * (-fsanitize=thread) calls a function below before each access. Accesses of two threads are
 * ordered by a barrier of the block, and within a warp by __syncwarp alone: a shuffle orders no
 * memory. Those of two blocks of a launch are ordered by nothing. At least one must be a write, and
 * not both atomic. */
#include "standin.h"

#ifdef STANDIN_RACES
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>

namespace {

enum kind { READ, WRITE, ATOMIC };
const char *const KINDS[] = {"reads", "writes", "updates"};

struct access {
  uint64_t code : 48, thread : 16; /* where it is in the code; 0: there was none */
  uint32_t block_barriers, warp_barriers;
};

/* What is known of a word or a byte: of the block that touched it last all that may race with a
 * later access, and one access of each kind of the blocks before it. Two reads, or two atomic
 * accesses, are enough: two of different warps, or of one warp the last two of different lanes. */
struct cell {
  long long block;
  access write, reads[2], atomics[2];
  uint64_t before[3]; /* by kind: where in the code */
  bool split;         /* a word of which bytes are known one by one */
};

struct region {
  const char *begin;
  size_t bytes;
  cell *words, *bytes_of_words;
  bool shared;
};

std::vector<region> regions;
const char *kernel;
long long first_block; /* of the launch */
uint32_t block_barriers[1024], warp_barriers[1024];

unsigned current_thread() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

cell *cells(size_t count) { /* zeros, which take memory when they are touched */
  void *found = mmap(nullptr, count * sizeof(cell), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED)
    die("no address space", "what is known of memory");
  return (cell *)found;
}

const region *region_of(const char *address) {
  for (const region &r : regions)
    if (address >= r.begin && address < r.begin + r.bytes)
      return &r;
  return nullptr;
}

/* "file:line" of the innermost function that isn't the stand-in's. */
std::string line_of(uint64_t code) {
  Dl_info info;
  if (!dladdr((void *)code, &info) || !info.dli_fname)
    return "?";
  char command[4096], line[1024];
  const size_t offset = code - 1 - (uint64_t)info.dli_fbase;
  snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%zx 2>/dev/null", info.dli_fname,
           offset);
  std::string found(info.dli_fname);
  unsetenv("LD_PRELOAD");
  if (FILE *pipe = popen(command, "r")) {
    while (fgets(line, sizeof line, pipe))
      if (!strstr(line, "cuda_runtime.h")) {
        found = line;
        found = found.substr(0, found.find_first_of(" \n"));
        break;
      }
    pclose(pipe);
  }
  const size_t slash = found.rfind('/');
  return slash == std::string::npos ? found : found.substr(slash + 1);
}

/* Whether this code reads on purpose what may not have been written: threads of fused programs
 * compute complete chunks, in shared memory of their own, and store what lies before the end. */
bool computes_beyond_the_end(uint64_t code) {
  static std::map<uint64_t, bool> known;
  const auto found = known.find(code);
  if (found != known.end())
    return found->second;
  return known[code] = line_of(code).rfind("program.h:", 0) == 0;
}

[[noreturn]] void report(kind what, uint64_t code, const char *with, uint64_t other, bool shared) {
  char text[512];
  snprintf(text, sizeof text, "%s, %s memory: thread %u of block (%u, %u, %u) %s it, %s; %s, %s",
           kernel, shared ? "shared" : "device", current_thread(), blockIdx.x, blockIdx.y,
           blockIdx.z, KINDS[what], line_of(code).c_str(), with, line_of(other).c_str());
  die("a race", text);
}

bool is_ordered(const access &before, const access &now) {
  return !before.code || before.thread == now.thread ||
         before.block_barriers < now.block_barriers ||
         (before.thread / 32 == now.thread / 32 && before.warp_barriers < now.warp_barriers);
}

void keep(access (&two)[2], const access &now) {
  access &a = two[0], &b = two[1];
  const auto of_warp = [&](const access &other) { return other.thread / 32 == now.thread / 32; };
  if (!a.code || a.block_barriers < now.block_barriers) {
    a = now;
    b = {};
  } else if (b.code && a.thread / 32 != b.thread / 32) {
    (of_warp(a) ? a : b) = now;
  } else if (!of_warp(a)) {
    b = now;
  } else if (a.warp_barriers < now.warp_barriers) {
    a = now;
    b = {};
  } else {
    (a.thread == now.thread ? a : b) = now;
  }
}

void check(cell &c, kind what, const access &now, bool shared) {
  const uint64_t code = now.code;
  if (c.block != blocks_run) {
    if (shared || c.block < first_block) {
      c = {};
    } else {
      const uint64_t own[3] = {c.reads[0].code, c.write.code, c.atomics[0].code};
      const cell old = c;
      c = {};
      for (int k = 0; k < 3; k++)
        c.before[k] = own[k] ? own[k] : old.before[k];
    }
    c.block = blocks_run;
  }
  for (kind k : {WRITE, ATOMIC, READ})
    if (c.before[k] && (what == WRITE || k == WRITE || what != k))
      report(what, code,
             k == READ    ? "another block reads it"
             : k == WRITE ? "another block writes it"
                          : "another block updates it",
             c.before[k], shared);
  char with[64];
  const auto test = [&](kind k, const access &before) {
    if (is_ordered(before, now))
      return;
    snprintf(with, sizeof with, "thread %u %s it", (unsigned)before.thread, KINDS[k]);
    report(what, code, with, before.code, shared);
  };
  test(WRITE, c.write);
  for (int i = 0; i < 2; i++) {
    if (what != READ)
      test(READ, c.reads[i]);
    if (what != ATOMIC)
      test(ATOMIC, c.atomics[i]);
  }
  if (shared && what != WRITE && !c.write.code && !c.atomics[0].code &&
      !computes_beyond_the_end(code)) {
    const std::string text = std::string(kernel) + ", " + line_of(code);
    die("shared memory is read that the block has not written", text.c_str());
  }
  if (what == READ) {
    keep(c.reads, now);
  } else if (what == ATOMIC) {
    keep(c.atomics, now);
  } else { /* what is ordered behind it is ordered behind all before it */
    c.write = now;
    memset(c.reads, 0, sizeof c.reads);
    memset(c.atomics, 0, sizeof c.atomics);
  }
}

void note(const void *at, size_t bytes, kind what, const void *code) {
  const char *address = (const char *)at;
  const region *r = region_of(address);
  if (!r || !kernel)
    return;
  access now{};
  now.code = (uint64_t)code & 0xffffffffffffu;
  now.thread = current_thread() & 0xffffu;
  now.block_barriers = block_barriers[now.thread];
  now.warp_barriers = warp_barriers[now.thread];
  const size_t begin = (size_t)(address - r->begin), end = begin + bytes;
  for (size_t i = begin; i < end;) {
    cell &word = r->words[i / 4], *own = &r->bytes_of_words[i / 4 * 4];
    const bool all = i % 4 == 0 && end - i >= 4;
    if (all && !word.split) {
      check(word, what, now, r->shared);
      i += 4;
      continue;
    }
    if (!word.split || (word.block != blocks_run && (r->shared || word.block < first_block))) {
      word.split = false;
      for (int k = 0; k < 4; k++)
        own[k] = word;
      word.split = true;
      word.block = blocks_run;
    }
    check(own[i % 4], what, now, r->shared);
    i++;
  }
}

} // namespace

void add_region(const void *begin, size_t bytes, bool shared) {
  regions.push_back({(const char *)begin, bytes, cells(bytes / 4 + 1), cells(bytes + 4), shared});
}

void begin_race_grid(const char *name) {
  all_cards(); /* whose memory is added when they are found */
  kernel = name;
  first_block = blocks_run + 1;
}

void end_race_grid() { kernel = nullptr; }

void begin_race_block() {
  memset(block_barriers, 0, sizeof block_barriers);
  memset(warp_barriers, 0, sizeof warp_barriers);
}

void note_block_barrier() { block_barriers[current_thread()]++; }
void note_warp_barrier(int first, unsigned lanes) {
  uint32_t most = 0;
  for (int lane = 0; lane < 32; lane++)
    if (lanes >> lane & 1 && warp_barriers[first + lane] > most)
      most = warp_barriers[first + lane];
  for (int lane = 0; lane < 32; lane++)
    if (lanes >> lane & 1)
      warp_barriers[first + lane] = most + 1;
}
void note_read(const void *at, size_t bytes, const void *code) { note(at, bytes, READ, code); }
void note_write(const void *at, size_t bytes, const void *code) { note(at, bytes, WRITE, code); }
void standin_note_atomic(const void *at, size_t bytes, const void *code) {
  note(at, bytes, ATOMIC, code);
}

extern "C" {
#define ACCESS(bytes)                                                                              \
  void __tsan_read##bytes(void *at) { note(at, bytes, READ, __builtin_return_address(0)); }        \
  void __tsan_write##bytes(void *at) { note(at, bytes, WRITE, __builtin_return_address(0)); }      \
  void __tsan_unaligned_read##bytes(void *at) {                                                    \
    note(at, bytes, READ, __builtin_return_address(0));                                            \
  }                                                                                                \
  void __tsan_unaligned_write##bytes(void *at) {                                                   \
    note(at, bytes, WRITE, __builtin_return_address(0));                                           \
  }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void *at, size_t bytes) {
  note(at, bytes, READ, __builtin_return_address(0));
}
void __tsan_write_range(void *at, size_t bytes) {
  note(at, bytes, WRITE, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void *, void *) {}
void __tsan_vptr_read(void *) {}
/* Of the host's code. */
uint8_t __tsan_atomic8_load(const volatile uint8_t *at, int) {
  return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
uint64_t __tsan_atomic64_load(const volatile uint64_t *at, int) {
  return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
uint64_t __tsan_atomic64_fetch_or(volatile uint64_t *at, uint64_t bits, int) {
  return __atomic_fetch_or(at, bits, __ATOMIC_SEQ_CST);
}
}
#endif
