/* recurrent/recurrent.c: see recurrent/recurrent.h. */
#include "recurrent/recurrent.h"
#include "gemm/pack.h"
#include "gemm/tile.h"

enum {
  GRAIN = 64 * 1024,           /* multiply-adds of a step that pay for a meeting of threads */
  CHUNK = 4096 * 1024,         /* multiply-adds between two looks at the cancel word */
  FEW = 4,                     /* rows per thread below which reading the weights is the limit */
  MOST_ROWS = 8 * DF_TILE_ROWS /* packed at a time */
};

static int64_t panels_of(int64_t hidden) { return df_divide_up(hidden, DF_TILE_COLUMNS); }

static int64_t width_of(int64_t columns) { return columns > DF_LANES ? DF_TILE_COLUMNS : DF_LANES; }

int64_t DF_NAME(df_recurrent_weight_floats)(int64_t k, int64_t groups, int64_t hidden) {
  return df_recurrent_floats(groups * panels_of(hidden) * DF_TILE_COLUMNS * k);
}

int64_t DF_NAME(df_recurrent_scratch_floats)(int64_t k, int64_t batch) {
  const int64_t blocks = df_divide_up(df_min(batch, MOST_ROWS), DF_TILE_ROWS);
  return df_recurrent_floats(k * DF_TILE_ROWS * blocks + DF_LANES);
}

/* ---- The weight ----------------------------------------------------------------------------- */

typedef struct packing {
  const df_recurrent_weight *weight;
  const float *r;
} packing;

static void prepack_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const packing *packing = context;
  const df_recurrent_weight *w = packing->weight;
  const int64_t panels = panels_of(w->hidden), k = w->k;
  int64_t panel, end;
  df_task_range(index, count, w->groups * panels, 1, &panel, &end);
  for (; panel < end; panel++) {
    const int64_t unit = panel % panels * DF_TILE_COLUMNS;
    const int64_t first = panel / panels * w->hidden + unit;
    const int64_t columns = df_min(DF_TILE_COLUMNS, w->hidden - unit), width = width_of(columns);
    for (int64_t j = 0; j < width; j += DF_LANES) {
      float *out = w->panels + panel * DF_TILE_COLUMNS * k + j;
      const int64_t some = df_max(0, df_min(DF_LANES, columns - j));
      if (w->transposed) {
        df_pack_transposed(out, packing->r + (first + j) * k, k, some, k, width);
      } else {
        for (int64_t p = 0; p < k; p++)
          vec_store(out + p * width,
                    vec_load_partial(packing->r + p * w->hidden + first + j, some));
      }
    }
  }
}

void DF_NAME(df_recurrent_pack)(const df_call *call, const df_recurrent_weight *weight,
                                const float *r) {
  packing packing = {weight, r};
  const int64_t panels = weight->groups * panels_of(weight->hidden);
  df_parallel(call, prepack_task, &packing,
              df_min(panels, df_task_count(call, panels * DF_TILE_COLUMNS * weight->k, GRAIN)));
}

/* A panel of b passes over all rows while it is in the cache, so b comes from memory once. */
void DF_NAME(df_recurrent_multiply)(const df_recurrent_weight *weight, float *c, int64_t c_row,
                                    const float *a, int64_t a_row, const float *bias,
                                    int accumulate, const df_recurrent_range *range) {
  const int64_t panels = panels_of(weight->hidden), k = weight->k, block = k * DF_TILE_ROWS;
  for (int64_t i = range->row; i < range->rows_end; i += MOST_ROWS) {
    const int64_t rows = df_min(MOST_ROWS, range->rows_end - i);
    const int64_t height = df_divide_up(rows, df_divide_up(rows, DF_TILE_ROWS)); /* all alike */
    for (int64_t j = 0; j < rows; j += height)
      df_pack_transposed(range->scratch + j / height * block, a + (i + j) * a_row, a_row,
                         df_min(height, rows - j), k, DF_TILE_ROWS);
    for (int64_t group = 0; group < weight->groups; group++)
      for (int64_t unit = range->unit; unit < range->units_end; unit += DF_TILE_COLUMNS) {
        const int64_t columns = df_min(DF_TILE_COLUMNS, range->units_end - unit);
        const int64_t at = group * weight->hidden + unit;
        const float *b =
            weight->panels + (group * panels * DF_TILE_COLUMNS + unit) * k; /* whole panels */
        const df_tile_epilogue epilogue = {.column_bias = bias ? bias + at : NULL,
                                           .accumulate = accumulate,
                                           .a_step = DF_TILE_ROWS};
        for (int64_t j = 0; j < rows; j += height) {
          const int64_t some = df_min(height, rows - j);
          const df_tile tile = DF_NAME(df_tiles)[some - 1][width_of(columns) / DF_LANES - 1];
          tile(k, range->scratch + j / height * block, b, c + (i + j) * c_row + at, c_row, columns,
               &epilogue);
        }
      }
  }
}

/* ---- The loop ------------------------------------------------------------------------------- */

/* How a step is split into tasks; with more than one task across, all meet after each step. */
typedef struct split {
  int64_t down, across;
} split;

static split split_of(const df_recurrent *s, int64_t count, int32_t threads) {
  const int64_t work = s->batch * s->gates * s->hidden * s->hidden;
  const int64_t panels = panels_of(s->hidden);
  if (threads == 1 || work * count <= GRAIN)
    return (split){1, 1};
  if (s->batch >= FEW * threads || (s->batch >= threads && (work < GRAIN || panels == 1)))
    return (split){threads, 1};
  if (work >= GRAIN && panels > 1)
    return (split){1, df_min(threads, panels)};
  return (split){1, 1};
}

typedef struct loop {
  const df_recurrent *sizes;
  split split;
  df_recurrent_step step;
  const void *context;
  float *scratch;
  int64_t scratch_floats;
  int64_t first, end; /* steps of this round */
} loop;

static void loop_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count;
  const loop *loop = context;
  const int64_t across = loop->split.across;
  df_recurrent_range range = {.scratch = loop->scratch + worker * loop->scratch_floats};
  df_task_range(index / across, loop->split.down, loop->sizes->batch, 1, &range.row,
                &range.rows_end);
  df_task_range(index % across, across, loop->sizes->hidden, DF_TILE_COLUMNS, &range.unit,
                &range.units_end);
  for (int64_t i = loop->first; i < loop->end; i++)
    loop->step(loop->context, i, &range);
}

void DF_NAME(df_recurrent_run)(const df_call *call, const df_recurrent *sizes, int64_t count,
                               df_recurrent_step step, const void *context, float *scratch,
                               int64_t k) {
  loop loop = {.sizes = sizes,
               .split = split_of(sizes, count, call->threads),
               .step = step,
               .context = context,
               .scratch = scratch,
               .scratch_floats = DF_NAME(df_recurrent_scratch_floats)(k, sizes->batch)};
  const int64_t work = sizes->batch * sizes->gates * sizes->hidden * sizes->hidden;
  const int64_t chunk = loop.split.across > 1 ? 1 : df_max(1, CHUNK / df_max(1, work));
  for (; loop.first < count; loop.first = loop.end) {
    loop.end = df_min(count, loop.first + chunk);
    /* Through the pool even alone: it looks at the cancel word. */
    call->host->parallel_for(loop_task, &loop, loop.split.down * loop.split.across, call->threads);
  }
}
