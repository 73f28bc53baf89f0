/* executor/resolved.h: a segment with its operands resolved to addresses. */
#ifndef DF_RUNTIME_EXECUTOR_RESOLVED_H
#define DF_RUNTIME_EXECUTOR_RESOLVED_H

#include "runtime.h"

typedef struct df_loop df_loop;

/* A step ready to run: a call of a kernel, or a loop, whose operands are those of |call|. */
typedef struct df_ready {
  df_kernel_run run;           /* null for a loop */
  df_kernel_run_many run_many; /* for this step and the next |group| - 1; null: each is run alone */
  const df_call **calls;       /* theirs */
  int64_t group;
  df_loop *loop;
  const char *name; /* of the kernel, for messages */
  df_call call;
} df_ready;

/* A pointer that moves from iteration to iteration: |base| on iteration 0, + stride each iteration,
 * + buffer_stride on odd ones. With handles an offset moves so, from |first|.
 */
typedef struct df_moving {
  void **pointer;
  void *base;
  int64_t *offset; /* null without handles */
  int64_t first;
  int64_t stride;
  int64_t buffer_stride;
} df_moving;

/* Steps that run as |kind| says. A segment is a loop of one iteration in which nothing moves. */
struct df_loop {
  df_ready *steps;
  df_moving *moving;
  int64_t iterations;
  int32_t n_steps;
  int32_t n_moving;
  int32_t kind;
  int32_t when;
};

/* A pointer to rewrite when the address of its slot changes. */
typedef struct df_patch {
  void **pointer;
  int64_t offset;
  struct df_patch *next; /* of the same slot */
} df_patch;

typedef struct df_slot {
  void *address; /* that the pointers hold now */
  df_patch *patches;
} df_slot;

/* What df_segment_prepare makes. */
typedef struct df_resolved {
  df_loop loop;
  df_slot *slots;
  int32_t n_slots;
  void *stream; /* what the calls hold now, see df_run */
  df_fault *fault;
  void *blocks;   /* every allocation, as a list */
  df_error error; /* where the kernels put their text */
} df_resolved;

#endif
