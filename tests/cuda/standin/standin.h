/* standin.h: what the files of the stand-in runtime share. */
#ifndef STANDIN_H
#define STANDIN_H
#include "cuda_runtime.h"

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

extern std::recursive_mutex standin_lock;
typedef std::lock_guard<std::recursive_mutex> guard;

[[noreturn]] void die(const char *text, const char *what);
size_t environment(const char *name, size_t otherwise);

/* ---- Blocks: standin.cpp -------------------------------------------------------------------- */

enum { USUAL_SHARED = 48 << 10, MOST_SHARED = 227 << 10 }; /* bytes of shared memory */

/* Runs |body| once per thread of each block of the grid; |shared| is dynamic, |most| is what a
 * block may have in all. */
void run_grid(const char *name, dim3 grid, dim3 block, size_t shared, size_t most,
              const std::function<void()> &body);
/* STANDIN_BLOCKS=edges: of a huge grid the first, the last and some other blocks run, and memory is
 * zeros that take no memory before they are touched: for indices beyond 2^31. With shares, blocks
 * around the twelfths of the grid run too. */
bool sparse();
extern long long blocks_run; /* the one that runs among them */
/* Which of two buffers the lanes of a warp use for what they all exchange next. */
int standin_buffer();

/* memset and memmove which leave zeros that aren't there away: sparse.cpp. */
void set_bytes(void *to, int value, size_t bytes);
void copy_bytes(void *to, const void *from, size_t bytes);

/* ---- The shared memory of a block: shared.cpp ----------------------------------------------- */

/* Noise, as on a card, in a block's dynamic shared memory; its arrays get it when they are named.
 */
void begin_shared(const char *kernel, size_t dynamic, size_t most);
/* Ends the test when the block wrote between or behind its arrays. */
void end_shared();

/* ---- Races: races.cpp, in a build that tells what kernels read and write (STANDIN_RACES) -------
 */

#ifdef STANDIN_RACES
void add_region(const void *begin, size_t bytes, bool shared);
void begin_race_grid(const char *kernel);
void end_race_grid();
void begin_race_block();
void note_block_barrier(); /* by each thread that was at one */
/* Memory is ordered for these lanes of the warp that begins with thread |first|. */
void note_warp_barrier(int first, unsigned lanes);
/* What the stand-in reads and writes for the thread that runs, which is here in its code. */
void note_read(const void *at, size_t bytes, const void *code);
void note_write(const void *at, size_t bytes, const void *code);
#else
static inline void add_region(const void *, size_t, bool) {}
static inline void begin_race_grid(const char *) {}
static inline void end_race_grid() {}
static inline void begin_race_block() {}
static inline void note_block_barrier() {}
static inline void note_warp_barrier(int, unsigned) {}
static inline void note_read(const void *, size_t, const void *) {}
static inline void note_write(const void *, size_t, const void *) {}
#endif

/* ---- Cards and their memory: card.cpp ------------------------------------------------------- */

enum { MODULE = 256 << 10, GRAPH = 64 << 10 }; /* bytes that a kernel's code and a graph take */

struct card {
  char *base;
  size_t top, used, total;
  size_t taken;                        /* by modules and graphs, which no caller allocated */
  std::map<size_t, size_t> blocks;     /* offset to bytes of what is allocated */
  int capability;                      /* 10 * major + minor */
  int open_depth;                      /* while it isn't 0 the memory can be touched */
  bool context;                        /* somebody worked with it */
  std::set<int> peers;                 /* whose memory it may read and write */
  std::set<std::string> loaded;        /* kernels */
  std::map<const void *, int> allowed; /* bytes of dynamic shared memory by kernel */
};
std::vector<card> &all_cards();
/* The card of the calling thread, which gets a context. */
int current_card();
/* The card whose memory this is, or -1. */
int card_of(const void *address);
bool is_pinned(const void *address);
/* Takes memory of a card for something that nobody allocated, or says that there is none. */
bool take_memory(int number, size_t bytes);

/* While it lives the memory of a card can be touched, and that of its peers. */
struct opened {
  std::vector<int> numbers;
  explicit opened(int number);
  ~opened();
  opened(const opened &) = delete;
};

/* Notes the failure for cudaGetLastError. */
cudaError_t fail(cudaError_t error);
extern cudaError_t sticky; /* a failure on the card stays until a test clears it */

/* ---- What tests plan: control.cpp ----------------------------------------------------------- */

enum failure {
  FAIL_NOTHING = 0,
  FAIL_LAUNCH = 1,
  FAIL_KERNEL = 2,
  FAIL_ALLOCATION = 3,
  FAIL_BEGIN = 4,
  FAIL_END = 5,
  FAIL_INSTANTIATE = 6,
  FAIL_CONDITIONAL = 7
};
bool fails_now(failure kind, const char *name);
/* Whether the vendor's libraries have no algorithm of this precision. */
bool refuses_precision(const char *name);
void note_handle(int change); /* one was made, or destroyed */
void note_question(int card); /* somebody asked for an algorithm on this card */
void note_launch(const char *name);
void note_graph_launch();
void note_overtaking(); /* a node of a graph begins before one that was captured earlier */
void note_copy(const void *in_host);

/* ---- Streams: stream.cpp -------------------------------------------------------------------- */

/* Ends the test when the calling thread captures a stream: |what| isn't allowed then. */
void forbid_in_capture(const char *what);

#endif
