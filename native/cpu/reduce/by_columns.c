/* reduce/by_columns.c: neighbouring outputs, to which one row after another is added. */
#include "map/gather.h"
#include "reduce/reduction.h"

enum { COLUMN_ROWS = 64 }; /* rows that are added in the element's type */

/* Outputs first..first+n from x on, strips strip..end. */
static void reduce_columns(const df_reduction *r, const char *x, int64_t partition, int64_t first,
                           int64_t n, int64_t strip, int64_t end) {
  const df_reduce_plan *plan = r->plan;
  const df_walk *rows = &plan->reduced;
  const df_reducer *op = r->op;
  df_reduced totals[DF_CHUNK];
  uint64_t partial[DF_CHUNK], buffer[DF_CHUNK];
  for (int64_t j = 0; j < n; j++)
    totals[j] = op->identity;
  DF_ASSUME(rows->inputs == 1 && rows->rank > 0);
  df_cursor cursor;
  df_cursor_set(&cursor, rows, strip);
  while (strip < end) {
    op->clear(partial, n);
    for (const int64_t stop = df_min(end, strip + COLUMN_ROWS); strip < stop; strip++) {
      const void *row = x + cursor.offset[0] * op->item;
      if (plan->stride != 1) {
        df_gather_row((char *)buffer, row, plan->stride, n, op->item);
        row = buffer;
      }
      op->add(partial, row, n);
      df_cursor_advance(&cursor, rows, 1);
    }
    op->fold(totals, partial, n);
  }
  for (int64_t j = 0; j < n; j++)
    df_reduce_deliver(r, partition, first + j, totals[j]);
}

void DF_NAME(df_reduce_by_columns)(const df_reduction *r, int64_t begin, int64_t end) {
  const df_reduce_plan *plan = r->plan;
  const df_walk *kept = &plan->kept;
  DF_ASSUME(kept->inputs == 1);
  df_cursor cursor;
  for (int64_t index = begin; index < end; index++) {
    const df_reduce_task task = df_reduce_task_of(plan, index);
    const int64_t row = task.unit / plan->chunks, column = task.unit % plan->chunks * DF_CHUNK;
    if (index == begin || task.unit == 0)
      df_cursor_set(&cursor, kept, row);
    reduce_columns(r, r->x + (cursor.offset[0] + column * plan->stride) * r->op->item,
                   task.partition, row * plan->inner + column,
                   df_min(DF_CHUNK, plan->inner - column), task.strip, task.strip_end);
    if (kept->rank > 0 && (task.unit + 1) % plan->chunks == 0)
      df_cursor_advance(&cursor, kept, 1);
  }
}
