/* standin.cpp: a grid's blocks: threads as fibers that change at barriers.
 *
 * The other files have the runtime: card.cpp, stream.cpp, and what tests plan: control.cpp. */
#include "standin.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

void die(const char *text, const char *what) {
  fprintf(stderr, "stand-in: %s: %s\n", text, what);
  abort();
}

size_t environment(const char *name, size_t otherwise) {
  const char *text = getenv(name);
  return text && *text ? (size_t)strtoull(text, nullptr, 10) : otherwise;
}

namespace {

/* ---- A block of threads as fibers ----------------------------------------------------------- */

enum waiting { RUNNING, AT_BLOCK, AT_WARP, FINISHED };
enum { MOST_THREADS = 1024, STACK = 128 * 1024 };

struct fiber {
  jmp_buf where;
  ucontext_t begin;
  char *stack;
  int thread; /* that it runs; -1: none yet */
  bool started;
};

struct block {
  const std::function<void()> *body;
  const char *name;
  int threads, begun, finished;
  waiting state[MOST_THREADS];
  fiber *holder[MOST_THREADS]; /* of a thread that waits, */
  standin_site site[MOST_THREADS];
  unsigned mask[MOST_THREADS];      /* lanes that it waits for, */
  bool ordered[MOST_THREADS];       /* and their memory */
  unsigned exchanges[MOST_THREADS]; /* of all lanes of its warp that it took part in */
  alignas(16) char lanes[3][MOST_THREADS][16];
  unsigned votes[3][MOST_THREADS];
} running;

fiber fibers[MOST_THREADS];
fiber *current;
jmp_buf scheduler;
ucontext_t from_here;
/* Threads begin with the last one: finds barriers that are missing. */
bool reverse_order = environment("STANDIN_REVERSE", 0) != 0;

void place_thread(int thread) {
  threadIdx.x = (unsigned)thread % blockDim.x;
  threadIdx.y = (unsigned)thread / blockDim.x % blockDim.y;
  threadIdx.z = (unsigned)thread / blockDim.x / blockDim.y;
}

int thread_of(int begun) { return reverse_order ? running.threads - 1 - begun : begun; }

/* Runs threads that have not begun, one after another, until one waits or there are no more. */
void fiber_main() {
  for (;;) {
    while (running.begun < running.threads) {
      int thread = thread_of(running.begun++);
      current->thread = thread;
      running.state[thread] = RUNNING;
      place_thread(thread);
      (*running.body)();
      running.state[current->thread] = FINISHED;
      running.finished++;
    }
    current->thread = -1;
    if (!_setjmp(current->where))
      _longjmp(scheduler, 1);
  }
}

void resume(fiber *f) {
  current = f;
  if (_setjmp(scheduler))
    return;
  if (f->started)
    _longjmp(f->where, 1);
  f->started = true;
  if (!f->stack) {
    f->stack =
        (char *)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (f->stack == MAP_FAILED)
      die("no memory for stacks", running.name);
  }
  getcontext(&f->begin);
  f->begin.uc_stack.ss_sp = f->stack;
  f->begin.uc_stack.ss_size = STACK;
  f->begin.uc_link = nullptr;
  makecontext(&f->begin, fiber_main, 0);
  swapcontext(&from_here, &f->begin);
}

void wait_at(waiting state, standin_site site, unsigned mask) {
  fiber *own = current;
  const int thread = own->thread;
  running.state[thread] = state;
  running.holder[thread] = own;
  running.site[thread] = site;
  running.mask[thread] = mask;
  if (!_setjmp(own->where))
    _longjmp(scheduler, 1);
  place_thread(thread);
}

bool is_same(const standin_site &a, const standin_site &b) {
  return a.line() == b.line() &&
         (a.file_name() == b.file_name() || !strcmp(a.file_name(), b.file_name()));
}

/* Lets the threads [begin, end) of |lanes| go on when all that are not finished wait as |first|
 * does. They must wait at one line for the same lanes. */
bool release(int begin, int end, unsigned lanes, int first) {
  for (int t = begin; t < end; t++) {
    if (!(lanes >> (t - begin) % 32 & 1) || running.state[t] == FINISHED)
      continue;
    if (running.state[t] != running.state[first] || running.mask[t] != running.mask[first])
      return false;
    if (!is_same(running.site[t], running.site[first])) {
      std::string text(running.name);
      text += ", lines " + std::to_string(running.site[first].line()) + " and " +
              std::to_string(running.site[t].line());
      die("threads of a block wait at different barriers", text.c_str());
    }
  }
  if (running.state[first] == AT_WARP && running.ordered[first])
    note_warp_barrier(begin, lanes);
  for (int t = begin; t < end; t++)
    if (lanes >> (t - begin) % 32 & 1 && running.state[t] != FINISHED)
      running.state[t] = RUNNING;
  return true;
}

bool release_warps() {
  bool moved = false;
  for (int t = 0; t < running.threads; t++) {
    const int first = t / 32 * 32,
              end = first + 32 < running.threads ? first + 32 : running.threads;
    moved |= running.state[t] == AT_WARP && release(first, end, running.mask[t], t);
  }
  return moved;
}

bool release_block() {
  for (int t = 0; t < running.threads; t++)
    if (running.state[t] != FINISHED)
      return running.state[t] == AT_BLOCK && release(0, running.threads, ~0u, t);
  return false;
}

fiber *idle_fiber() {
  for (fiber &f : fibers)
    if (!f.started || f.thread < 0)
      return &f;
  die("no fiber is free", running.name);
}

void run_block(const char *name, const std::function<void()> &body, int threads) {
  running.body = &body;
  running.name = name;
  running.threads = threads;
  running.begun = running.finished = 0;
  std::fill_n(running.exchanges, threads, 0u);
  while (running.begun < threads)
    resume(idle_fiber());
  while (running.finished < threads) {
    if (!release_warps() && !release_block())
      die("threads of a block wait at different barriers", name);
    for (int i = 0; i < threads; i++) {
      int t = thread_of(i);
      if (running.state[t] == RUNNING)
        resume(running.holder[t]);
    }
  }
}

} // namespace

void standin_block_barrier(standin_site at) {
  wait_at(AT_BLOCK, at, ~0u);
  note_block_barrier();
}

void standin_warp_barrier(unsigned mask, standin_site at, bool ordered) {
  if (!(mask >> current->thread % 32 & 1))
    die("a lane waits for others and isn't in its mask", running.name);
  running.ordered[current->thread] = ordered;
  wait_at(AT_WARP, at, mask);
}

/* What all lanes of a warp exchange lies in two buffers that alternate: whoever writes one again
 * was at the barrier of the other, which nobody reaches before it has read the first. Where some
 * lanes exchange there is a third, and a barrier behind it. */
int standin_buffer() { return (int)(running.exchanges[current->thread]++ & 1); }

namespace {

enum { SOME_LANES = 2 };

int begin_exchange(unsigned mask) { return mask == ~0u ? standin_buffer() : SOME_LANES; }

/* Whether a thread of the warp took part in the exchange that the calling thread is in. */
bool takes_part(int thread, unsigned mask) {
  if (thread >= running.threads || !(mask >> thread % 32 & 1))
    return false;
  return mask == ~0u ? running.exchanges[thread] >= running.exchanges[current->thread]
                     : running.state[thread] != FINISHED;
}

void end_exchange(unsigned mask, standin_site at) {
  if (mask != ~0u)
    standin_warp_barrier(mask, at, false);
}

} // namespace

void standin_exchange(const void *value, void *result, size_t bytes, int lane, unsigned mask,
                      standin_site at) {
  const int thread = current->thread, from = thread / 32 * 32 + lane;
  if (bytes > sizeof running.lanes[0][0])
    die("a shuffle of more than 16 bytes", running.name);
  auto &lanes = running.lanes[begin_exchange(mask)];
  memcpy(lanes[thread], value, bytes);
  standin_warp_barrier(mask, at, false);
  if (!takes_part(from, mask))
    die("a shuffle reads a lane that does not take part", running.name);
  memcpy(result, lanes[from], bytes);
  end_exchange(mask, at);
}

unsigned standin_ballot(int predicate, unsigned mask, standin_site at) {
  const int thread = current->thread, first = thread / 32 * 32;
  auto &votes = running.votes[begin_exchange(mask)];
  votes[thread] = predicate != 0;
  standin_warp_barrier(mask, at, false);
  unsigned all = 0;
  for (int lane = 0; lane < 32; lane++)
    if (takes_part(first + lane, mask))
      all |= votes[first + lane] << lane;
  end_exchange(mask, at);
  return all;
}

long long blocks_run;

namespace {

/* Blocks that run of a huge grid, at each end and between; and around each of so many equal shares,
 * where a kernel's work of another kind may begin. */
enum { EDGE = 64, BETWEEN = 64, SHARES = 12, AROUND = 8 };

const char *const blocks_named = getenv("STANDIN_BLOCKS");
bool is_named(const char *name) { return blocks_named && !strcmp(blocks_named, name); }
bool runs_shares() { return is_named("shares"); }

/* Numbers of the blocks that run: all, or of many a few; see sparse(). */
std::vector<uint64_t> blocks_of(uint64_t count) {
  std::vector<uint64_t> found;
  const bool few = sparse() && count > 2 * EDGE + BETWEEN;
  const uint64_t begin = few ? (uint64_t)EDGE : count;
  for (uint64_t i = 0; i < begin; i++)
    found.push_back(i);
  uint64_t state = count;
  for (int i = 0; few && i < BETWEEN; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    found.push_back(EDGE + (state >> 20) % (count - 2 * EDGE));
  }
  for (int share = 1; few && runs_shares() && share < SHARES; share++)
    for (uint64_t i = 0; i < 2 * AROUND; i++)
      found.push_back(count * (uint64_t)share / SHARES - AROUND + i);
  for (uint64_t i = few ? count - EDGE : count; i < count; i++)
    found.push_back(i);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

} // namespace

bool sparse() { return is_named("edges") || runs_shares(); }

void run_grid(const char *name, dim3 grid, dim3 block, size_t shared, size_t most,
              const std::function<void()> &body) {
  gridDim = grid;
  blockDim = block;
  const int threads = (int)(block.x * block.y * block.z);
  begin_race_grid(name);
  const auto run = [&](uint64_t number) {
    blockIdx = {(unsigned)(number % grid.x), (unsigned)(number / grid.x % grid.y),
                (unsigned)(number / grid.x / grid.y)};
    blocks_run++;
    begin_shared(name, shared, most);
    begin_race_block();
    run_block(name, body, threads);
    end_shared();
  };
  for (uint64_t number : blocks_of((uint64_t)grid.x * grid.y * grid.z))
    run(number);
  end_race_grid();
}

/* Whether the threads of a block begin with the last one. */
extern "C" void standin_reverse(int on) {
  guard g(standin_lock);
  reverse_order = on != 0;
}
