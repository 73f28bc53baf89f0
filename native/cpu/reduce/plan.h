/* reduce/plan.h: in which order a reduction reads its tensor, and how it is split into tasks. */
#ifndef DF_CPU_REDUCE_PLAN_H
#define DF_CPU_REDUCE_PLAN_H

#include "map/walk.h"

enum {
  DF_REDUCE_RUN = DF_CHUNK,       /* elements of a row that are reduced in the element's type */
  DF_REDUCE_STRIP = 32 * DF_CHUNK /* elements of a strip of a row, at most */
};

typedef struct df_reduce_plan {
  df_walk kept, reduced;
  int64_t outputs;    /* product of the kept axes */
  int64_t count;      /* elements per output */
  int64_t inner;      /* by rows: length and stride of the innermost reduced axis ... */
  int64_t stride;     /* ... by columns: of the innermost kept axis */
  int64_t strips;     /* rows, or runs of a row, per output */
  int64_t per_row;    /* strips in a row (1 by columns) */
  int64_t units;      /* outputs by rows, chunks of outputs by columns */
  int64_t chunks;     /* by columns: chunks per row */
  int64_t partitions; /* into which the strips are split */
  int by_columns;
} df_reduce_plan;

/* The strips of one partition that a task adds to one unit. */
typedef struct df_reduce_task {
  int64_t partition, unit;
  int64_t strip, strip_end;
} df_reduce_task;

/* Task |index| of plan->units * plan->partitions. */
static inline df_reduce_task df_reduce_task_of(const df_reduce_plan *plan, int64_t index) {
  const int64_t partition = index / plan->units;
  return (df_reduce_task){.partition = partition,
                          .unit = index % plan->units,
                          .strip = partition * plan->strips / plan->partitions,
                          .strip_end = (partition + 1) * plan->strips / plan->partitions};
}

/* The complete plan follows from shape, strides and axes: prepare and run find the same. */
void DF_NAME(df_reduce_plan_make)(df_reduce_plan *plan, const int64_t *shape,
                                  const int64_t *strides, int32_t rank, const int64_t *axes,
                                  int32_t n_axes);

#endif
