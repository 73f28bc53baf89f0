/* cpu.h: what every kernel file of the CPU plugin shares.
 *
 * A kernel file is compiled once per instruction set with -DDF_ISA=<name>, so its exported table
 * gets the name of the instruction set; everything else in it is static. plugin.c picks one set of
 * tables.
 */
#ifndef DF_CPU_CPU_H
#define DF_CPU_CPU_H
#include "assume.h"
#include "dataflow_inline.h"
#include "kernels/attributes.h"

#include <stddef.h>
#include <string.h>

#define DF_PASTE2(a, b) a##_##b
#define DF_PASTE(a, b) DF_PASTE2(a, b)
#define DF_TEXT2(a) #a
#define DF_TEXT(a) DF_TEXT2(a)

/* The name of |x| in this compilation: DF_NAME(df_cast_kernels) is df_cast_kernels_avx2. */
#define DF_NAME(x) DF_PASTE(x, DF_ISA)

/* DF_KERNELS(cast) = {&..., NULL}; the table of a family, seen inside the plugin only. */
#define DF_KERNELS(family)                                                                         \
  __attribute__((visibility("hidden"))) const df_kernel *const DF_NAME(df_##family##_kernels)[]

/* A record without plan-time functions; |key| makes the name unique: "add f32 avx2". */
#define DF_KERNEL(op_, key_, operands_, inplace_, run_)                                            \
  DF_KERNEL_IF(op_, key_, operands_, inplace_, NULL, run_)
#define DF_KERNEL_IF(op_, key_, operands_, inplace_, accepts_, run_)                               \
  &(const df_kernel){.struct_size = sizeof(df_kernel),                                             \
                     .op = op_,                                                                    \
                     .name = op_ " " key_ " " DF_TEXT(DF_ISA),                                     \
                     .operands = operands_,                                                        \
                     .inplace = inplace_,                                                          \
                     .accepts = accepts_,                                                          \
                     .run = run_}

/* Before a loop: an iteration reads nothing that another one writes. A result that lies on an
 * operand, element on element, is no dependence. */
#ifdef __clang__
#define DF_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define DF_IVDEP _Pragma("GCC ivdep")
#endif

enum {
  DF_GRAIN = 32768, /* elements of light work below which a second thread does not pay */
  DF_LONGEST = 1
      << 22,      /* elements after which a run looks whether it was cancelled: milliseconds */
  DF_CHUNK = 1024 /* elements in a buffer on the stack: 4 KiB of floats stay in the first cache */
};

static inline int64_t df_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t df_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t df_divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t df_round_up(int64_t a, int64_t b) { return df_divide_up(a, b) * b; }

/* Units of a split when |total| is split the fewest times into at most |most|, all about equal.
 */
static inline int64_t df_even_split(int64_t total, int64_t most) {
  return df_divide_up(total, df_max(1, df_divide_up(total, df_max(1, most))));
}

/* Tasks to split |work| units into, each of at least |grain|; a few per thread even out uneven
 * threads, and between two of them a run can be cancelled. */
static inline int64_t df_task_count(const df_call *call, int64_t work, int64_t grain) {
  int64_t most = call->threads > 1 ? 4 * (int64_t)call->threads : 1;
  return df_max(1, df_min(df_max(most, work / DF_LONGEST), work / grain));
}

/* Units [*begin, *end) of |total| that task |index| of |count| does; split at multiples of |align|.
 */
static inline void df_task_range(int64_t index, int64_t count, int64_t total, int64_t align,
                                 int64_t *begin, int64_t *end) {
  int64_t blocks = df_divide_up(total, align);
  *begin = df_min(total, blocks * index / count * align);
  *end = df_min(total, blocks * (index + 1) / count * align);
}

/* How many workers |threads| threads are in a loop of |count| tasks: a workspace needs so many
 * slices. Not for loops inside of tasks. */
static inline int64_t df_workers(int32_t threads, int64_t count) { return df_min(threads, count); }

/* task(context, 0..count-1, count, worker); one task runs here, without the pool. */
static inline void df_parallel(const df_call *call, df_task task, void *context, int64_t count) {
  if (count == 1)
    task(context, 0, 1, 0);
  else if (count > 0)
    call->host->parallel_for(task, context, count, call->threads);
}

#endif
