/* conv/common.c: see conv/common.h. */
#include "conv/common.h"

static void run_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count;
  const df_tasks *tasks = context;
  int64_t at[DF_TASK_AXES] = {0};
  DF_ASSUME(tasks->axes > 0 && tasks->axes <= DF_TASK_AXES);
  for (int32_t axis = tasks->axes - 1; axis >= 0; axis--) {
    at[axis] = index % tasks->size[axis];
    index /= tasks->size[axis];
  }
  float *workspace = tasks->workspace;
  tasks->run(tasks->context, at, workspace ? workspace + worker * tasks->scratch : NULL);
}

void DF_NAME(df_run_tasks)(const df_call *call, const df_tasks *tasks) {
  df_tasks copy = *tasks;
  df_parallel(call, run_task, &copy, df_product(tasks->size, 0, tasks->axes));
}

typedef struct units {
  int64_t count;
  df_run_range run;
  const void *context;
} units;

static void run_range(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const units *u = context;
  int64_t begin, end;
  df_task_range(index, count, u->count, 1, &begin, &end);
  u->run(u->context, begin, end);
}

void DF_NAME(df_run_units)(const df_call *call, int64_t count, int64_t work, df_run_range run,
                           const void *context) {
  units u = {count, run, context};
  df_parallel(call, run_range, &u, df_min(count, df_task_count(call, work, DF_GRAIN)));
}

typedef struct addition {
  float *sum;
  const float *copies;
  int64_t count, size;
} addition;

static void add_range(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const addition *a = context;
  int64_t begin, end;
  df_task_range(index, count, a->size, 16, &begin, &end);
  for (int64_t i = 0; i < a->count; i++) {
    const float *copy = a->copies + i * a->size;
    for (int64_t j = begin; j < end; j++)
      a->sum[j] += copy[j];
  }
}

void DF_NAME(df_add_copies)(const df_call *call, float *sum, const float *copies, int64_t count,
                            int64_t size) {
  addition a = {sum, copies, count, size};
  if (count > 0)
    df_parallel(call, add_range, &a, df_task_count(call, size * (count + 1), DF_GRAIN));
}
