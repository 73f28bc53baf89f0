/* host/series.c: a segment of a series of plans becomes that of another plan of it. */
#include "host/internal.h"

#include <stddef.h>

/* Whether a kernel asks for the prepacked copies that it asked for when the plans were made; of
 * those that are |made|, bit by bit, also the size. */
static int is_alike(const df_prepared *answer, const df_prepared *expected, int64_t made) {
  if (answer->n_prepacks != expected->n_prepacks || answer->replaced != expected->replaced)
    return 0;
  for (int32_t i = 0; i < answer->n_prepacks; i++) {
    const df_prepack *a = answer->prepacks[i], *b = expected->prepacks[i];
    if (a->input != b->input || a->kind != b->kind || (made >> i & 1 && a->bytes != b->bytes))
      return 0;
  }
  return 1;
}

df_status df_series_move(df_series *series, int64_t t, int64_t *wanted, df_error *error) {
  const int64_t count = series->n_kernels;
  df_prepared_set *set = &series->made[1 - series->at];
  *wanted = 0;
  for (int64_t i = 0; i < series->n_lines; i++) {
    const df_line *line = &series->lines[i];
    *line->number = line->first + t * line->step + t * (t - 1) * line->bend;
  }
  df_release_set(set); /* of a move that failed */
  for (int64_t i = 0; i < count; i++)
    if (df_accepts(series->kernels[i], &series->nodes[i]))
      return df_error_set(error, DF_UNSUPPORTED, i, "kernel '%s' does not take the sizes",
                          series->kernels[i]->name);
  const df_status status = df_prepare_set(count, series->kernels, series->nodes, set, error);
  if (status)
    return status;
  for (int64_t i = 0; i < count; i++) {
    const df_prepared *answer = &set->prepared[i];
    if (!is_alike(answer, series->expected[i], series->copies[i]))
      return df_error_set(error, DF_UNSUPPORTED, i, "kernel '%s' wants other prepacked copies",
                          series->kernels[i]->name);
    series->steps[i]->state = answer->state;
    if (answer->workspace > series->given[i] && answer->workspace > *wanted)
      *wanted = answer->workspace;
  }
  return *wanted ? DF_OK : df_series_hold(series, error);
}

df_status df_series_hold(df_series *series, df_error *error) {
  const int32_t next = 1 - series->at;
  const df_status status =
      df_hold_segment(series->device, NULL, series->segment, &series->held[next], error);
  if (status)
    return status;
  series->at = next;
  df_let_go(&series->held[1 - next]); /* first: it uses the states */
  df_release_set(&series->made[1 - next]);
  return DF_OK;
}

void df_series_release(df_series *series) {
  for (int i = 0; i < 2; i++) {
    df_let_go(&series->held[i]);
    df_release_set(&series->made[i]);
  }
}
