/* standin.cpp: the bodies of the stand-in CUDA runtime.
 *
 * What is put into a stream waits there until somebody synchronizes, as late as a card might begin:
 * a host that forgets to wait reads old data. Device memory is protected but while a stream works,
 * so that a host that reads it faults.
 */
#include "cuda_runtime.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace {

std::recursive_mutex lock;
typedef std::lock_guard<std::recursive_mutex> guard;

[[noreturn]] void die(const char *text, const char *what) {
  fprintf(stderr, "stand-in: %s: %s\n", text, what);
  abort();
}

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
  fiber *holder[MOST_THREADS]; /* of a thread that waits */
  alignas(16) char lanes[MOST_THREADS][16];
  unsigned votes[MOST_THREADS];
} running;

fiber fibers[MOST_THREADS];
fiber *current;
jmp_buf scheduler;
ucontext_t from_here;
std::vector<char> shared_memory;
bool reverse_order; /* threads begin with the last one: finds barriers that are missing */

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

void wait_at(waiting state) {
  fiber *own = current;
  const int thread = own->thread;
  running.state[thread] = state;
  running.holder[thread] = own;
  if (!_setjmp(own->where))
    _longjmp(scheduler, 1);
  place_thread(thread);
}

/* Lets the threads [begin, end) go on when all that are not finished wait as |state| says. */
bool release(int begin, int end, waiting state) {
  int found = 0;
  for (int t = begin; t < end; t++) {
    if (running.state[t] != state && running.state[t] != FINISHED)
      return false;
    found += running.state[t] == state;
  }
  for (int t = begin; t < end && found; t++)
    if (running.state[t] == state)
      running.state[t] = RUNNING;
  return found > 0;
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
  while (running.begun < threads)
    resume(idle_fiber());
  while (running.finished < threads) {
    bool moved = false;
    for (int first = 0; first < threads; first += 32)
      moved |= release(first, first + 32 < threads ? first + 32 : threads, AT_WARP);
    moved = moved || release(0, threads, AT_BLOCK);
    if (!moved)
      die("threads of a block wait at different barriers", name);
    for (int i = 0; i < threads; i++) {
      int t = thread_of(i);
      if (running.state[t] == RUNNING)
        resume(running.holder[t]);
    }
  }
}

} // namespace

void standin_block_barrier() { wait_at(AT_BLOCK); }
void standin_warp_barrier() { wait_at(AT_WARP); }
void *standin_shared() { return shared_memory.data(); }

void standin_exchange(const void *value, void *result, size_t bytes, int lane) {
  const int thread = current->thread, first = thread / 32 * 32;
  if (bytes > sizeof running.lanes[0])
    die("a shuffle of more than 16 bytes", running.name);
  memcpy(running.lanes[thread], value, bytes);
  standin_warp_barrier();
  int from = first + lane;
  if (from >= running.threads || running.state[from] == FINISHED)
    die("a shuffle reads a lane that does not take part", running.name);
  memcpy(result, running.lanes[from], bytes);
  standin_warp_barrier();
}

unsigned standin_ballot(int predicate) {
  const int thread = current->thread, first = thread / 32 * 32;
  running.votes[thread] = predicate != 0;
  standin_warp_barrier();
  unsigned all = 0;
  for (int lane = 0; lane < 32 && first + lane < running.threads; lane++)
    if (running.state[first + lane] != FINISHED)
      all |= running.votes[first + lane] << lane;
  standin_warp_barrier();
  return all;
}

/* ---- Device memory -------------------------------------------------------------------------- */

namespace {

const size_t RESERVED = (size_t)16 << 30, PAGE = 4096;

struct card {
  char *base;
  size_t top, used, total;
  std::map<size_t, size_t> blocks; /* offset to bytes of what is allocated */
};
std::vector<card> cards;
std::map<const char *, size_t> pinned; /* begin and bytes */
int open_depth;
thread_local int chosen;
thread_local cudaError_t last_error;
cudaError_t sticky; /* a failure on the card stays until the process ends, or a test clears it */

size_t environment(const char *name, size_t otherwise) {
  const char *text = getenv(name);
  return text && *text ? (size_t)strtoull(text, nullptr, 10) : otherwise;
}

cudaError_t fail(cudaError_t error) {
  if (error)
    last_error = error;
  return error;
}

void find_cards() {
  static bool done;
  if (done)
    return;
  done = true;
  reverse_order = environment("STANDIN_REVERSE", 0) != 0;
  cards.resize(environment("STANDIN_DEVICES", 1));
  for (card &c : cards) {
    c.total = environment("STANDIN_MEMORY", (size_t)4 << 30);
    c.base = (char *)mmap(nullptr, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                          -1, 0);
    if (c.base == MAP_FAILED)
      die("no address space", "device memory");
  }
}

/* While at least one of these lives the device's memory can be touched. */
struct opened {
  opened() {
    if (open_depth++ == 0)
      protect(PROT_READ | PROT_WRITE);
  }
  ~opened() {
    if (--open_depth == 0)
      protect(PROT_NONE);
  }
  static void protect(int how) {
    for (card &c : cards)
      if (c.top)
        mprotect(c.base, c.top, how);
  }
};

/* ---- Tests look in here --------------------------------------------------------------------- */

enum { FAIL_LAUNCH = 1, FAIL_KERNEL = 2, FAIL_ALLOCATION = 3 };
int planned_failure;
std::string planned_name;
std::set<std::string> launched;
long long launches, graph_launches;

bool fails_now(int kind, const char *name) {
  if (planned_failure != kind || !strstr(name, planned_name.c_str()))
    return false;
  planned_failure = 0;
  return true;
}

} // namespace

extern "C" {
/* The next launch (1) or execution (2) of a kernel whose name has |name| in it, or the next
 * allocation (3), fails; 0 undoes all. */
void standin_fail(int kind, const char *name) {
  guard g(lock);
  planned_failure = kind;
  planned_name = name;
  if (!kind)
    sticky = last_error = cudaSuccess;
}
/* Whether the threads of a block begin with the last one. */
void standin_reverse(int on) {
  guard g(lock);
  find_cards();
  reverse_order = on != 0;
}
int standin_was_launched(const char *name) {
  guard g(lock);
  for (const std::string &known : launched)
    if (known == name)
      return 1;
  return 0;
}
long long standin_launches() { return launches; }
long long standin_graph_launches() { return graph_launches; }
long long standin_allocated(int device) { return (long long)cards[(size_t)device].used; }
}

/* ---- Streams, events, graphs ---------------------------------------------------------------- */

typedef std::function<void()> work;

struct standin_graph {
  std::vector<work> nodes;
};
struct standin_stream {
  std::deque<work> queue;
  std::unique_ptr<standin_graph> capturing;
};
struct standin_event {
  cudaStream_t stream = nullptr;
  bool pending = false;
};

namespace {

void put(cudaStream_t stream, work what) {
  if (!stream)
    die("the default stream is not for plugins", "give a stream");
  if (stream->capturing)
    stream->capturing->nodes.push_back(std::move(what));
  else
    stream->queue.push_back(std::move(what));
}

/* Works off the stream while |more| says so. */
template <typename F> void work_off(cudaStream_t stream, F more) {
  opened memory;
  while (!stream->queue.empty() && more()) {
    work next = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (!sticky)
      next();
  }
}

std::string plain_name(const char *name) {
  std::string text(name);
  if (!text.empty() && text[0] == '(')
    text = text.substr(1);
  return text.substr(0, text.find_first_of("<) "));
}

} // namespace

void standin_enqueue(const char *name, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                     std::function<void()> thread) {
  guard g(lock);
  const unsigned long long threads = (unsigned long long)block.x * block.y * block.z;
  if (threads == 0 || threads > MOST_THREADS || block.z > 64 || grid.x == 0 || grid.y == 0 ||
      grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 ||
      shared > 227 * 1024 || fails_now(FAIL_LAUNCH, name)) {
    fail(cudaErrorInvalidConfiguration);
    return;
  }
  launches++;
  launched.insert(plain_name(name));
  std::string held(name);
  put(stream, [held, grid, block, shared, thread = std::move(thread)] {
    if (fails_now(FAIL_KERNEL, held.c_str())) {
      sticky = cudaErrorIllegalAddress;
      return;
    }
    if (shared_memory.size() < shared)
      shared_memory.resize(shared);
    gridDim = grid;
    blockDim = block;
    const int threads = (int)(block.x * block.y * block.z);
    for (unsigned z = 0; z < grid.z; z++)
      for (unsigned y = 0; y < grid.y; y++)
        for (unsigned x = 0; x < grid.x; x++) {
          blockIdx = {x, y, z};
          memset(shared_memory.data(), 0xc7, shared); /* noise, as on a card */
          run_block(held.c_str(), thread, threads);
        }
  });
}

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
  case cudaSuccess:
    return "no error";
  case cudaErrorMemoryAllocation:
    return "out of memory";
  case cudaErrorInvalidConfiguration:
    return "invalid configuration argument";
  case cudaErrorNoDevice:
    return "no CUDA-capable device is detected";
  case cudaErrorIllegalAddress:
    return "an illegal memory access was encountered";
  default:
    return "an error of the stand-in";
  }
}

cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return sticky ? sticky : error;
}
cudaError_t cudaPeekAtLastError() { return sticky ? sticky : last_error; }

cudaError_t cudaGetDeviceCount(int *count) {
  guard g(lock);
  find_cards();
  *count = (int)cards.size();
  return cards.empty() ? fail(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int) {
  guard g(lock);
  *out = {};
  snprintf(out->name, sizeof out->name, "stand-in");
  out->major = 9;
  out->multiProcessorCount = 2;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
  case cudaDevAttrMultiProcessorCount:
    *value = 2;
    break;
  case cudaDevAttrComputeCapabilityMajor:
    *value = 9;
    break;
  case cudaDevAttrComputeCapabilityMinor:
    *value = 0;
    break;
  case cudaDevAttrMaxSharedMemoryPerBlock:
    *value = 48 * 1024;
    break;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin:
    *value = 227 * 1024;
    break;
  }
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int other) {
  *can = device != other;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

cudaError_t cudaSetDevice(int device) {
  guard g(lock);
  find_cards();
  if (device < 0 || device >= (int)cards.size())
    return fail(cudaErrorInvalidValue);
  chosen = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
  *device = chosen;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  guard g(lock);
  const card &c = cards[(size_t)chosen];
  *total = c.total;
  *available = c.total - c.used;
  return sticky;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
  guard g(lock);
  card &c = cards[(size_t)chosen];
  const size_t size = (bytes + PAGE) / PAGE * PAGE; /* at least a byte of each is not in use */
  if (sticky)
    return fail(sticky);
  if (c.used + size > c.total || fails_now(FAIL_ALLOCATION, ""))
    return fail(cudaErrorMemoryAllocation);
  size_t at = 0;
  for (const auto &[offset, taken] : c.blocks) {
    if (offset - at >= size)
      break;
    at = offset + taken;
  }
  if (at + size > RESERVED)
    return fail(cudaErrorMemoryAllocation);
  c.blocks[at] = size;
  c.used += size;
  if (at + size > c.top) {
    c.top = at + size;
    if (open_depth)
      opened::protect(PROT_READ | PROT_WRITE);
  }
  opened memory;
  memset(c.base + at, 0xc7, size); /* seen when it is read before it is written */
  *out = c.base + at;
  return cudaSuccess;
}

cudaError_t cudaFree(void *address) {
  guard g(lock);
  for (card &c : cards) {
    auto found = c.blocks.find((size_t)((char *)address - c.base));
    if (address && (char *)address >= c.base && found != c.blocks.end()) {
      /* What is protected at every launch stays as small as what is in use. */
      madvise(address, found->second, MADV_DONTNEED);
      mprotect(address, found->second, PROT_NONE);
      c.used -= found->second;
      c.blocks.erase(found);
      c.top = c.blocks.empty() ? 0 : c.blocks.rbegin()->first + c.blocks.rbegin()->second;
      return cudaSuccess;
    }
  }
  return address ? fail(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t bytes) {
  guard g(lock);
  *out = malloc(bytes ? bytes : 1);
  pinned[(const char *)*out] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void *address) {
  guard g(lock);
  pinned.erase((const char *)address);
  free(address);
  return cudaSuccess;
}

static bool is_pinned(const void *address) {
  auto found = pinned.upper_bound((const char *)address);
  if (found == pinned.begin())
    return false;
  --found;
  return (const char *)address < found->first + found->second;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  guard g(lock);
  if (sticky)
    return fail(sticky);
  if (kind == cudaMemcpyHostToDevice && !is_pinned(from)) {
    auto staged =
        std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
    put(stream, [=] { memcpy(to, staged->data(), bytes); });
    return cudaSuccess;
  }
  put(stream, [=] { memmove(to, from, bytes); });
  if (kind == cudaMemcpyDeviceToHost && !is_pinned(to) && !stream->capturing)
    return cudaStreamSynchronize(stream);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  guard g(lock);
  if (sticky)
    return fail(sticky);
  put(stream, [=] { memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned) {
  *out = new standin_stream();
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  guard g(lock);
  work_off(stream, [] { return true; });
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  guard g(lock);
  if (stream->capturing)
    return fail(cudaErrorStreamCaptureUnsupported);
  work_off(stream, [] { return true; });
  return sticky;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  guard g(lock);
  stream->capturing = std::make_unique<standin_graph>();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  guard g(lock);
  *graph = stream->capturing.release();
  return *graph ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) {
  *out = new standin_graph(*graph);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  guard g(lock);
  if (sticky)
    return fail(sticky);
  graph_launches++;
  put(stream, [graph] {
    for (const work &node : graph->nodes)
      if (!sticky)
        node();
  });
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned) {
  *out = new standin_event();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  guard g(lock);
  if (event->pending)
    cudaEventSynchronize(event);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  guard g(lock);
  event->stream = stream;
  event->pending = true;
  put(stream, [event] { event->pending = false; });
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  guard g(lock);
  if (event->pending)
    work_off(event->stream, [event] { return event->pending && !sticky; });
  return sticky;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  guard g(lock);
  if (event->pending)
    put(stream,
        [event] { work_off(event->stream, [event] { return event->pending && !sticky; }); });
  return cudaSuccess;
}
