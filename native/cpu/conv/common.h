/* conv/common.h: how the threads of a call share a convolution.
 *
 * A grid of tasks has one task for every combination of coordinates along its axes, the last axis
 * running fastest. Which thread does which is not fixed, so a task writes what no other writes. */
#ifndef DF_CPU_CONV_COMMON_H
#define DF_CPU_CONV_COMMON_H

#include "cpu.h"

enum { DF_TASK_AXES = 5 };

typedef struct df_tasks {
  /* Does the task at |at|, with |scratch| to itself. */
  void (*run)(const void *context, const int64_t *at, float *scratch);
  const void *context;
  int32_t axes;
  int64_t size[DF_TASK_AXES];
  float *workspace; /* |scratch| floats for each worker; null when tasks need none */
  int64_t scratch;
} df_tasks;

/* Floats of the workspace of a grid of these tasks. */
static inline int64_t df_tasks_floats(const df_tasks *tasks, int32_t threads) {
  return tasks->scratch * df_workers(threads, df_product(tasks->size, 0, tasks->axes));
}

void DF_NAME(df_run_tasks)(const df_call *call, const df_tasks *tasks);

/* run(context, begin, end) over ranges that cover [0, count) units of equal work, |work| element
 * operations in all. */
typedef void (*df_run_range)(const void *context, int64_t begin, int64_t end);
void DF_NAME(df_run_units)(const df_call *call, int64_t count, int64_t work, df_run_range run,
                           const void *context);

/* sum[i] += copies[0][i] + copies[1][i] + ..., copy by copy; each has |size| floats. */
void DF_NAME(df_add_copies)(const df_call *call, float *sum, const float *copies, int64_t count,
                            int64_t size);

#endif
