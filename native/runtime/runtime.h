/* runtime.h: what the native runtime offers to the Python side of dataflow, besides dataflow.h.
 *
 * Read by a C compiler and by cffi: plain declarations only. Plugins never see this file; what they
 * may use is in df_host.
 */
#ifndef DF_RUNTIME_RUNTIME_H
#define DF_RUNTIME_RUNTIME_H
#include "dataflow.h"

/* ---- Host and log --------------------------------------------------------------------------- */

/* The table that plugins get; lives as long as the process. */
const df_host *df_host_table(void);

typedef void (*df_log_fn)(int32_t severity, const char *text);

/* Sends what plugins log to |callback|; null drops it. It may be called from any thread. */
void df_set_log(df_log_fn callback);

/* ---- Libraries and kernels ------------------------------------------------------------------ */

/* Opens the plugin library at |path| and returns what its df_plugin_entry gave, checked: versions,
 * sizes of the tables, required members. Null, with |error| filled, when it cannot be used. The
 * library stays open as long as the process. */
const df_plugin *df_library_open(const char *path, df_error *error);

/* Null when |kernel| takes |node|, else the reason why not. */
const char *df_accepts(const df_kernel *kernel, const df_node *node);

/* Prepares |count| kernels, kernels[i] for nodes[i] into prepared[i], all or none: when one fails,
 * those before it are released, error->step is its index and its status is returned. |prepacks| has
 * DF_MOST_PREPACKS records for each, of which those that it asks for are filled. */
df_status df_prepare_kernels(int64_t count, const df_kernel *const *kernels, const df_node *nodes,
                             df_prepared *prepared, df_prepack *prepacks, df_error *error);

/* Releases the states that df_prepare_kernels made. */
void df_release_kernels(int64_t count, const df_kernel *const *kernels, df_prepared *prepared);

/* Kernels and the states that df_prepare_kernels made for them. It lies in memory of the caller,
 * zeroed at first; the arrays are its own. */
typedef struct df_prepared_set {
  int64_t count;
  const df_kernel **kernels;
  df_prepared *prepared;
  df_prepack *prepacks; /* DF_MOST_PREPACKS for each */
} df_prepared_set;

/* As df_prepare_kernels, into an empty set. */
df_status df_prepare_set(int64_t count, const df_kernel *const *kernels, const df_node *nodes,
                         df_prepared_set *set, df_error *error);

/* Releases the states and empties the set; does nothing to an empty one. */
void df_release_set(df_prepared_set *set);

/* ---- What is held of a device --------------------------------------------------------------- */

enum {
  DF_HELD_DEVICE = 1,
  DF_HELD_MEMORY = 2,
  DF_HELD_SEGMENT = 3,
  DF_HELD_COMPILED = 4,
  DF_HELD_STAGING = 5
};

typedef struct df_opened df_opened;
typedef struct df_compiled df_compiled;

/* An open device, memory of one, a segment that it has prepared, or what it compiled for such. It
 * lies in memory of the caller, zeroed at first. The device is closed when all are gone that are
 * held of it, in any order, and what was compiled goes after the segments that use it. */
typedef struct df_held {
  df_opened *opened;
  void *self; /* what the device wants first in every call */
  void *prepared;
  df_compiled *compiled;
  df_buffer buffer;
  int32_t kind;
  int32_t reserved;
} df_held;

/* Each fills an empty |held|: opens |device| with the |values| of its options, allocates memory of
 * a device that is held, or of the host from which it copies fast, compiles a segment for it, and
 * prepares one, with what was |compiled| for it; that may be null. */
df_status df_hold_device(const df_device *device, const int64_t *values, df_held *held,
                         df_error *error);
df_status df_hold_memory(const df_held *device, int64_t bytes, df_held *held, df_error *error);
df_status df_hold_staging(const df_held *device, int64_t bytes, df_held *held, df_error *error);
df_status df_hold_compiled(const df_held *device, const df_segment *segment, df_held *held,
                           df_error *error);
df_status df_hold_segment(const df_held *device, const df_held *compiled, df_segment *segment,
                          df_held *held, df_error *error);

/* Gives it back and empties it; does nothing to an empty one. In a forked child a device whose
 * memory is not the host's is left alone: it belongs to the parent. */
void df_let_go(df_held *held);

/* ---- Series of plans ------------------------------------------------------------------------ */

/* A number in the tables of a segment that is first + t * step + t * (t - 1) * bend in plan t. */
typedef struct df_line {
  int64_t *number;
  int64_t first, step, bend;
} df_line;

/* A segment of a series of plans, and the steps of it with numbers that change: their kernels
 * prepare anew for each plan. It lies in memory of the caller; |at|, |made| and |held| are zeroed
 * at first. held[at] is the segment of the plan that it has become. */
typedef struct df_series {
  const df_held *device;
  df_segment *segment;
  const df_line *lines;
  int64_t n_lines;
  int64_t n_kernels;
  const df_kernel *const *kernels;
  const df_node *nodes; /* their operands and attributes are those of the steps */
  df_step *const *steps;
  const df_prepared *const *expected; /* what the kernels answered when the plans were made */
  const int64_t *copies;              /* bit by bit which of the prepacked copies are made */
  const int64_t *given;               /* bytes of workspace that each step has */
  df_prepared_set made[2];
  df_held held[2];
  int32_t at;
  int32_t reserved;
} df_series;

/* Becomes plan |t|; the segment before must not be running. Where a workspace is too small,
 * |wanted| says how large it must be, else 0; the caller then gives a larger one and holds the
 * segment. When it fails the segment can't be run before another move. DF_UNSUPPORTED: a kernel
 * doesn't take the sizes, or wants other prepacked copies. */
df_status df_series_move(df_series *series, int64_t t, int64_t *wanted, df_error *error);

/* Prepares the segment as its tables are now, and releases the one before. */
df_status df_series_hold(df_series *series, df_error *error);

/* Gives back what it holds. */
void df_series_release(df_series *series);

/* ---- Segments: the default executor (df_host.segment_*) ------------------------------------- */

/* Resolves every operand of |segment| to an address, in bodies too, and checks that it lies inside
 * its arena on every iteration. |device| is not used. A prepared segment is run by one thread at a
 * time. Operands of a body move with the iterations of that body only, not with those of a loop
 * around it. */
df_status df_segment_prepare(void *device, const df_segment *segment, void **prepared,
                             df_error *error);

/* Runs the steps in order. On failure error->step is the index of the step in the top segment. */
df_status df_segment_run(void *device, void *prepared, const df_run *run, df_error *error);

void df_segment_release(void *device, void *prepared);

/* ---- Programs: what a plan does, on several devices, as one call ---------------------------- */

/* DF_COMMAND_SEGMENT runs |prepared|; DF_COMMAND_COPY makes |copy|, whose host side lies at
 * |host_offset| in slot |host_slot| of the run, unless that is -1; DF_COMMAND_WAIT waits for the
 * device. */
enum { DF_COMMAND_SEGMENT = 1, DF_COMMAND_COPY = 2, DF_COMMAND_WAIT = 3 };

typedef struct df_command {
  const df_device *device;
  void *self; /* what the device wants first */
  void *prepared;
  df_copy copy;
  int64_t host_offset;
  int32_t host_slot;
  int32_t kind;
} df_command;

/* Does the commands in order; on failure *failed is the number of the one that failed. On the main
 * thread SIGINT also cancels the run, before the handler that was there (Python's) sees it:
 * Python's own handlers run only between bytecodes, so without this Ctrl-C would wait for the end.
 */
df_status df_run_commands(const df_command *commands, int64_t count, const df_run *run,
                          int64_t *failed, df_error *error);

/* ---- Threads -------------------------------------------------------------------------------- */

/* See df_host.parallel_for. */
void df_parallel_for(df_task task, void *context, int64_t count, int32_t threads);

/* Number of threads that the pool has started in this process. */
int32_t df_pool_workers(void);

/* ---- Deadlines ------------------------------------------------------------------------------ */

/* What a cancel word says that a deadline set; what Ctrl-C and others set is 1. */
enum { DF_EXPIRED = 2 };

/* A deadline: the caller's memory, filled by begin. */
typedef struct df_deadline {
  volatile int32_t *cancel;
  int64_t at;
  struct df_deadline *next;
} df_deadline;

/* From begin to end, *cancel becomes DF_EXPIRED once |nanoseconds| have passed, unless it is set
 * already. Returns 0, and does nothing, where no thread can be started; each begin that returned 1
 * needs an end, of any thread, before |deadline| and |cancel| go. */
int32_t df_deadline_begin(df_deadline *deadline, volatile int32_t *cancel, int64_t nanoseconds);
void df_deadline_end(df_deadline *deadline);

/* ---- Counted host memory -------------------------------------------------------------------- */

/* |bytes| of memory at |base|, or nothing. It lies in memory of the caller, zeroed at first. */
typedef struct df_host_block {
  void *base;
  int64_t bytes;
} df_host_block;

/* Fills an empty block with memory for an arena, aligned to 64 bytes or more; contents unspecified.
 * DF_OUT_OF_MEMORY when |bytes| is negative or there is not enough memory. */
df_status df_host_take(int64_t bytes, df_host_block *block);

/* Frees the memory and empties the block; does nothing to an empty one. */
void df_host_free(df_host_block *block);

/* Bytes allocated and not freed, as asked for, and the number of such allocations. */
int64_t df_allocated_bytes(void);
int64_t df_allocation_count(void);

/* ---- Guard pages ---------------------------------------------------------------------------- */

enum { DF_GUARD_NONE = 0, DF_GUARD_READ = 1, DF_GUARD_WRITE = 3 };
enum { DF_GUARD_EXIT = 86 }; /* status of a process that reports faults and that called exit() */

/* Lets the pages of |bytes| at |base| be touched as |access| says. */
df_status df_guard_access(void *base, int64_t bytes, int32_t access);

/* Names memory, for the description of faults inside or near it; the last 256 names are kept. */
void df_guard_name(const void *begin, int64_t bytes, const char *name);

/* Forgets the names of memory that overlaps this: it was unmapped since. */
void df_guard_forget(const void *begin, int64_t bytes);

/* From now on a fault that ends the process is described in a line on this file descriptor first:
 * a read or write, and how many bytes before or behind which named memory; a call of exit() too. */
df_status df_guard_report(int32_t descriptor);

#endif
