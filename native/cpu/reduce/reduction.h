/* reduce/reduction.h: a reduction as its two loops see it: an op on a type, a plan and a tensor. */
#ifndef DF_CPU_REDUCE_REDUCTION_H
#define DF_CPU_REDUCE_REDUCTION_H

#include "reduce/plan.h"
#include "reduce/source.h"

/* A joined result: |f| for float types, |i| for integers. */
typedef union df_reduced {
  double f;
  int64_t i;
} df_reduced;

/* What one op does with one type. */
typedef struct df_reducer {
  int64_t item;
  df_reduced identity;
  df_reduced (*run)(const void *x, int64_t n); /* n <= DF_REDUCE_RUN contiguous elements */
  df_reduced (*join)(df_reduced a, df_reduced b);
  /* partial[0..n) = identity; partial[j] = op(partial[j], x[j]); totals[j] = op(..., partial[j]) */
  void (*clear)(void *partial, int64_t n);
  void (*add)(void *partial, const void *x, int64_t n);
  void (*fold)(df_reduced *totals, const void *partial, int64_t n);
  void (*store)(void *out, int64_t index, df_reduced total, int64_t count);
  void (*rows)(const float *const *rows, int64_t count, int64_t n, float *totals); /* or null */
} df_reducer;

typedef struct df_reduction {
  const df_reducer *op;
  const df_reduce_plan *plan;
  const char *x;
  void *out;
  df_reduced *partials;    /* partitions x outputs, when there are several partitions */
  const df_source *source; /* read instead of x, or null */
} df_reduction;

/* The result of a task for |output|. */
static inline void df_reduce_deliver(const df_reduction *r, int64_t partition, int64_t output,
                                     df_reduced total) {
  if (r->plan->partitions > 1)
    r->partials[partition * r->plan->outputs + output] = total;
  else
    r->op->store(r->out, output, total, r->plan->count);
}

/* Tasks [begin, end) of the plan, each of which reads one output's elements along the innermost
 * reduced axis. */
void DF_NAME(df_reduce_by_rows)(const df_reduction *r, int64_t begin, int64_t end);

/* Tasks [begin, end) of the plan, each of which adds rows one by one to neighbouring outputs. */
void DF_NAME(df_reduce_by_columns)(const df_reduction *r, int64_t begin, int64_t end);

/* Runs all tasks and joins the results of partitions; workspace is the call's. */
df_status DF_NAME(df_reduction_run)(const df_call *call, df_reduction r);

#endif
