/* reduce/reduction.c: runs the tasks of a reduction and joins the results of its partitions. */
#include "reduce/reduction.h"

static void reduce_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const df_reduction *r = context;
  int64_t begin, end;
  df_task_range(index, count, r->plan->units * r->plan->partitions, 1, &begin, &end);
  if (r->plan->by_columns)
    DF_NAME(df_reduce_by_columns)(r, begin, end);
  else
    DF_NAME(df_reduce_by_rows)(r, begin, end);
}

df_status DF_NAME(df_reduction_run)(const df_call *call, df_reduction r) {
  const df_reduce_plan *plan = r.plan;
  const df_reducer *op = r.op;
  if (plan->outputs == 0)
    return DF_OK;
  if (plan->count == 0) {
    for (int64_t i = 0; i < plan->outputs; i++)
      op->store(r.out, i, op->identity, 0);
    return DF_OK;
  }
  const int64_t tasks = df_task_count(call, plan->outputs * plan->count, DF_GRAIN);
  df_parallel(call, reduce_task, &r, df_min(tasks, plan->units * plan->partitions));
  if (plan->partitions > 1)
    for (int64_t i = 0; i < plan->outputs; i++) {
      df_reduced total = op->identity;
      for (int64_t partition = 0; partition < plan->partitions; partition++)
        total = op->join(total, r.partials[partition * plan->outputs + i]);
      op->store(r.out, i, total, plan->count);
    }
  return DF_OK;
}
