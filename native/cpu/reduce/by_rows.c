/* reduce/by_rows.c: outputs whose elements are read along the innermost reduced axis.
 *
 * Short rows of floats are taken some at a time (reduce/short_rows.h), of other types one by one. A
 * tensor that another kernel computes as it goes (reduce/source.h) is fetched run by run. */
#include "map/gather.h"
#include "reduce/reduction.h"
#include "reduce/short_rows.h"

enum { FETCHED = 4 * DF_REDUCE_RUN }; /* elements of short rows that are fetched at a time */

/* n elements from number |at| on, with a stride, n <= DF_REDUCE_STRIP. */
static df_reduced reduce_strip(const df_reduction *r, int64_t at, int64_t n, df_reduced total) {
  const df_reducer *op = r->op;
  const int64_t stride = r->plan->stride;
  uint64_t buffer[DF_REDUCE_RUN];
  for (int64_t begin = 0; begin < n; begin += DF_REDUCE_RUN) {
    const int64_t some = df_min(DF_REDUCE_RUN, n - begin);
    const void *run = buffer;
    if (r->source)
      r->source->fetch(r->source->context, at + begin, some, (float *)(void *)buffer);
    else if (stride == 1)
      run = r->x + (at + begin) * op->item;
    else
      df_gather_row((char *)buffer, r->x + (at + begin * stride) * op->item, stride, some,
                    op->item);
    total = op->join(total, op->run(run, some));
  }
  return total;
}

static df_reduced reduce_output(const df_reduction *r, int64_t at, int64_t strip, int64_t end) {
  const df_reduce_plan *plan = r->plan;
  const df_walk *rows = &plan->reduced;
  df_reduced total = r->op->identity;
  if (strip >= end)
    return total;
  DF_ASSUME(rows->inputs == 1);
  df_cursor cursor;
  df_cursor_set(&cursor, rows, strip / plan->per_row);
  int64_t in_row = strip % plan->per_row;
  for (; strip < end; strip++) {
    const int64_t first = in_row * DF_REDUCE_STRIP;
    total = reduce_strip(r, at + cursor.offset[0] + first * plan->stride,
                         df_min(DF_REDUCE_STRIP, plan->inner - first), total);
    if (++in_row == plan->per_row) {
      in_row = 0;
      if (rows->rank > 0)
        df_cursor_advance(&cursor, rows, 1);
    }
  }
  return total;
}

/* Whether a result is one short row. */
static int by_short_rows(const df_reduction *r) {
  const df_reduce_plan *plan = r->plan;
  return (r->op->rows || !r->source) && plan->strips == 1 && plan->stride == 1 &&
         plan->inner <= DF_REDUCE_RUN && plan->partitions == 1;
}

/* Outputs [begin, end) row by row, |cursor| is that of the first. */
static void reduce_each_row(const df_reduction *r, df_cursor *cursor, int64_t begin, int64_t end) {
  const df_reduce_plan *plan = r->plan;
  for (int64_t unit = begin; unit < end; unit++) {
    const char *row = r->x + cursor->offset[0] * r->op->item;
    r->op->store(r->out, unit, r->op->run(row, plan->inner), plan->count);
    df_cursor_advance(cursor, &plan->kept, 1);
  }
}

/* Outputs [begin, end), |cursor| is that of the first. */
static void reduce_short_rows(const df_reduction *r, df_cursor *cursor, int64_t begin,
                              int64_t end) {
  const df_reduce_plan *plan = r->plan;
  for (int64_t unit = begin, some; unit < end; unit += some) {
    const float *rows[DF_ROWS_TOGETHER];
    float totals[DF_ROWS_TOGETHER], fetched[FETCHED];
    some = df_min(DF_ROWS_TOGETHER, end - unit);
    if (r->source) {
      some = df_min(some, FETCHED / plan->inner);
      r->source->fetch(r->source->context, unit * plan->inner, some * plan->inner, fetched);
    }
    for (int64_t i = 0; i < some; i++) {
      if (r->source) {
        rows[i] = fetched + i * plan->inner;
        continue;
      }
      rows[i] = (const float *)(const void *)r->x + cursor->offset[0];
      df_cursor_advance(cursor, &plan->kept, 1);
    }
    r->op->rows(rows, some, plan->inner, totals);
    for (int64_t i = 0; i < some; i++)
      r->op->store(r->out, unit + i, (df_reduced){.f = (double)totals[i]}, plan->count);
  }
}

void DF_NAME(df_reduce_by_rows)(const df_reduction *r, int64_t begin, int64_t end) {
  const df_reduce_plan *plan = r->plan;
  const df_walk *kept = &plan->kept;
  DF_ASSUME(kept->inputs == 1 && kept->rank > 0);
  df_cursor cursor;
  if (by_short_rows(r)) {
    df_cursor_set(&cursor, kept, begin);
    (r->op->rows ? reduce_short_rows : reduce_each_row)(r, &cursor, begin, end);
    return;
  }
  for (int64_t index = begin; index < end; index++) {
    const df_reduce_task task = df_reduce_task_of(plan, index);
    if (index == begin || task.unit == 0)
      df_cursor_set(&cursor, kept, task.unit);
    df_reduce_deliver(r, task.partition, task.unit,
                      reduce_output(r, cursor.offset[0], task.strip, task.strip_end));
    df_cursor_advance(&cursor, kept, 1);
  }
}
