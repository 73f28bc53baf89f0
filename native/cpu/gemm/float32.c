/* gemm/float32.c: packing and the loops around the tiles.
 *
 * One operand stays packed in the second cache, the other passes over it panel by panel. With many
 * rows a block of b stays, up to K_BLOCK x N_BLOCK in panels of DF_TILE_COLUMNS columns, and a
 * panel of a, DF_TILE_ROWS rows, is packed into the first cache for each pass. With few rows all of
 * a stays, and b, which is then most of what is read, comes from memory once while tiles compute;
 * where one panel is all of a, and the rows of b can be read as they lie, b isn't packed.
 * Per multiply-add the packing costs 1/n of a load and store for a, 1/m for b: a constant b is
 * packed once for all runs where that counts. */
#include "gemm/float32.h"
#include "gemm/blocks.h"
#include "gemm/pack.h"
#include "gemm/split.h"
#include "gemm/tile.h"

enum {
  K_BLOCK = 384,       /* a panel of a is 21 KiB, a panel of b 48 */
  M_BLOCK = 420,       /* rows that can stay: 630 KiB */
  N_BLOCK = 512,       /* a block of b is 768 KiB */
  CACHED = 256 * 1024, /* elements of b that stay in the second cache from run to run */
  STREAMS = 16,        /* rows of a larger b that are read at a time, as memory is read best */
  SUMS = 32,           /* tiles whose sums are kept then */
  SMALL = 64 * 1024,   /* multiply-adds below which a second thread does not pay */
  MOST_ROWS = 64,      /* of a product that is worth a constant that is packed already */
  ONE_SET = 1024,      /* floats from one line to the next of the same set */
  ALIGN = 16
};

/* ---- Blocks --------------------------------------------------------------------------------- */

static int64_t panel_width(int64_t columns) {
  return columns > DF_LANES ? DF_TILE_COLUMNS : DF_LANES;
}

/* How a is read. */
typedef enum form {
  PACKED,
  BY_ROWS, /* as it lies, the steps of a row together */
  BY_STEPS /* as it lies, the rows of a step together */
} form;

/* Rows can be read as they lie, unless all of a tile's fall into one set of the first cache;
 * columns are read so when there is only one panel of b to make up for packing them. */
static form form_of(const df_gemm *gemm) {
  if (gemm->a_col == 1 && gemm->a_row % ONE_SET != 0)
    return BY_ROWS;
  return gemm->a_row == 1 && gemm->n <= DF_TILE_COLUMNS ? BY_STEPS : PACKED;
}

/* A product whose steps of k are one block, and where its packed operands go. */
typedef struct work {
  df_gemm gemm;
  int64_t height; /* rows of a panel of a; panels are about equal */
  form form;
  const char *later; /* where b goes on behind its last step; null at the end */
  float *a, *b;
  const float *panels; /* of a b that is packed already, from this product's column 0 on; or null */
  int64_t steps, at;   /* of k: how many such a panel has, and the first of this product */
} work;

/* The panel of a at |row|: packed to |to|, or as it lies. */
static const float *panel_of(const work *w, float *to, int64_t row) {
  const df_gemm *g = &w->gemm;
  const float *from = g->a + row * g->a_row;
  if (w->form != PACKED)
    return from;
  df_pack_tile(to, from, g->a_row, g->a_col, df_min(w->height, g->m - row), g->k, DF_TILE_ROWS);
  return to;
}

/* Steps [p, end) of a panel of b. */
static void pack_columns(const work *w, float *to, int64_t j, int64_t p, int64_t end) {
  const df_gemm *g = &w->gemm;
  int64_t columns = df_min(DF_TILE_COLUMNS, g->n - j), width = panel_width(columns);
  if (p >= end)
    return; /* where there are no steps b may have no memory */
  if (g->blocks) {
    DF_NAME(df_blocks_pack)
    (to + p * width, g->blocks, g->b_at + p * g->b_row + j * g->b_col, columns, width, end - p);
    return;
  }
  const void *from = df_gemm_b(g, p * g->b_row + j * g->b_col);
  DF_ASSUME(from);
  DF_BY_DTYPE(df_gemm_b_dtype(g), df_pack_panel_from, to + p * width, from, g->b_row, g->b_col,
              columns, width, end - p)
}

static void multiply_tile(const work *w, int64_t row, int64_t j, const float *a, const float *b,
                          df_tile_ahead ahead) {
  const df_gemm *g = &w->gemm;
  int64_t rows = df_min(w->height, g->m - row), columns = df_min(DF_TILE_COLUMNS, g->n - j);
  df_tile_epilogue epilogue = df_tile_epilogue_of(g, j);
  epilogue.ahead = ahead;
  epilogue.a_row = g->a_row;
  epilogue.a_step = w->form == BY_STEPS ? g->a_col : DF_TILE_ROWS;
  int32_t vectors = (int32_t)(panel_width(columns) / DF_LANES);
  df_tile tile = w->form == BY_ROWS ? DF_NAME(df_row_tiles)[rows - 1][vectors - 1]
                                    : DF_NAME(df_tiles)[rows - 1][vectors - 1];
  tile(g->k, a, b, g->c + row * g->c_row + j, g->c_row, columns, &epilogue);
}

/* The panel at column |j| of a b that is packed already. */
static const float *panel_at(const work *w, int64_t j) {
  const int64_t columns = df_min(DF_TILE_COLUMNS, w->gemm.n - j);
  return w->panels + j * w->steps + w->at * panel_width(columns);
}

/* The same as the passes below where b is packed already: each panel of it is used for all rows,
 * or each panel of a for all columns. */
static void pass_over_panels(const work *w, int32_t rows_stay) {
  const df_gemm *g = &w->gemm;
  const df_tile_ahead none = {0};
  if (!rows_stay) {
    for (int64_t row = 0; row < g->m; row += w->height) {
      const float *panel = panel_of(w, w->a, row);
      for (int64_t j = 0; j < g->n; j += DF_TILE_COLUMNS)
        multiply_tile(w, row, j, panel, panel_at(w, j), none);
    }
    return;
  }
  const int64_t panel = w->form == PACKED ? g->k * DF_TILE_ROWS : w->height * g->a_row;
  const float *a = panel_of(w, w->a, 0);
  for (int64_t row = w->height; row < g->m; row += w->height)
    (void)panel_of(w, w->a + row / w->height * panel, row);
  for (int64_t j = 0; j < g->n; j += DF_TILE_COLUMNS)
    for (int64_t row = 0; row < g->m; row += w->height)
      multiply_tile(w, row, j, a + row / w->height * panel, panel_at(w, j), none);
}

/* All panels of b stay in the second cache, each panel of a in the first while it passes over them.
 */
static void pass_over_columns(const work *w) {
  const df_gemm *g = &w->gemm;
  for (int64_t j = 0; j < g->n; j += DF_TILE_COLUMNS)
    pack_columns(w, w->b + j * g->k, j, 0, g->k);
  for (int64_t row = 0; row < g->m; row += w->height) {
    const float *panel = panel_of(w, w->a, row);
    for (int64_t j = 0; j < g->n; j += DF_TILE_COLUMNS)
      multiply_tile(w, row, j, panel, w->b + j * g->k, (df_tile_ahead){0});
  }
}

/* The next |steps| of a panel of b: its rows, or the columns where their steps lie together. */
static df_tile_ahead ahead_of(const df_gemm *g, const char *next, int64_t steps) {
  const int64_t row = (g->b_col == 1 ? g->b_row : g->b_col) * df_item_bytes(df_gemm_b_dtype(g));
  const int64_t rows = g->b_col == 1 ? steps : DF_TILE_COLUMNS;
  return (df_tile_ahead){next, (int32_t)row, row == (int32_t)row ? (int32_t)rows : 0};
}

/* All panels of a stay in the second cache. A panel of b is used for all rows, and never needed
 * again. The next one comes from memory meanwhile: each tile fetches some steps of it, which are
 * packed behind the tile, since many rows a power of two apart would drive each other out of the
 * cache. */
static void pass_over_rows(const work *w) {
  const df_gemm *g = &w->gemm;
  int64_t panels = df_divide_up(g->m, w->height);
  int64_t panel = w->form == PACKED ? g->k * DF_TILE_ROWS : w->height * g->a_row;
  int64_t share = df_round_up(df_divide_up(g->k, panels), g->blocks ? DF_BLOCKS_STEPS : DF_LANES);
  const int64_t item = df_item_bytes(df_gemm_b_dtype(g));
  float *strip = w->b, *other = w->b + g->k * DF_TILE_COLUMNS;
  const float *a = panel_of(w, w->a, 0);
  for (int64_t i = 1; i < panels; i++)
    (void)panel_of(w, w->a + i * panel, i * w->height);
  pack_columns(w, strip, 0, 0, g->k);
  for (int64_t j = 0; j < g->n; j += DF_TILE_COLUMNS) {
    int64_t next = j + DF_TILE_COLUMNS;
    const char *from = g->blocks ? NULL : next < g->n ? df_gemm_b(g, next * g->b_col) : w->later;
    for (int64_t i = 0; i < panels; i++) {
      int64_t p = df_min(g->k, i * share), end = df_min(g->k, p + share);
      const df_tile_ahead ahead =
          from && p < end ? ahead_of(g, from + p * g->b_row * item, end - p) : (df_tile_ahead){0};
      multiply_tile(w, i * w->height, j, a + i * panel, strip, ahead);
      if (next < g->n)
        pack_columns(w, other, next, p, end);
    }
    float *used = strip;
    strip = other;
    other = used;
  }
}

/* Whether b is used once, by one panel of a, and its steps lie in rows: packing would cost more
 * than the product. */
static int is_read_once(const df_gemm *g) {
  return g->m <= DF_TILE_ROWS && g->k > 0 && g->b_col == 1 && !g->blocks && !g->b16;
}

/* One panel of a, packed, passes over b as it lies, |steps| rows of it at a time. Where these
 * aren't all, the sums of tiles lie in |floats| of scratch meanwhile, and a tile goes on from them:
 * results are those of packed operands. Only columns that fill no tile are packed. */
static void pass_over_once(const work *w, int64_t steps, int64_t floats) {
  const df_gemm *g = &w->gemm;
  const int64_t tile_floats = g->m * DF_TILE_COLUMNS, full = g->n / DF_TILE_COLUMNS;
  const int64_t together = df_max(1, steps < g->k ? df_min(SUMS, floats / tile_floats) : 1);
  const df_tile tile = DF_NAME(df_strided_tiles)[g->m - 1];
  const float *a = panel_of(w, w->a, 0);
  for (int64_t first = 0; first < full; first += together)
    for (int64_t p = 0; p < g->k; p += steps)
      for (int64_t i = first; i < df_min(full, first + together); i++) {
        const int64_t j = i * DF_TILE_COLUMNS, count = df_min(steps, g->k - p);
        const int32_t ends = p + count == g->k;
        float *sums = w->b + (i - first) * tile_floats;
        df_tile_epilogue epilogue = ends ? df_tile_epilogue_of(g, j) : (df_tile_epilogue){0};
        epilogue.begun = p ? sums : NULL;
        epilogue.b_step = g->b_row;
        epilogue.a_step = DF_TILE_ROWS;
        tile(count, a + p * DF_TILE_ROWS, g->b + p * g->b_row + j, ends ? g->c + j : sums,
             ends ? g->c_row : DF_TILE_COLUMNS, DF_TILE_COLUMNS, &epilogue);
      }
  const int64_t j = full * DF_TILE_COLUMNS;
  if (j < g->n) {
    pack_columns(w, w->b, j, 0, g->k);
    multiply_tile(w, 0, j, a, w->b, (df_tile_ahead){0});
  }
}

/* ---- Packing a constant ---------------------------------------------------------------------- */

int64_t DF_NAME(df_gemm_float32_prepack_bytes)(int64_t m, int64_t n, int64_t k, int64_t b_col) {
  if (m > MOST_ROWS || (b_col == 1 && m <= DF_TILE_ROWS) || n < 1 || k < 1)
    return 0;
  const int64_t full = n / DF_TILE_COLUMNS * DF_TILE_COLUMNS;
  return df_times(full + (n > full ? panel_width(n - full) : 0), k) * (int64_t)sizeof(float);
}

void DF_NAME(df_gemm_float32_prepack)(const df_gemm *gemm, float *prepacked) {
  const work w = {.gemm = *gemm};
  for (int64_t j = 0; j < gemm->n; j += DF_TILE_COLUMNS)
    pack_columns(&w, prepacked + j * gemm->k, j, 0, gemm->k);
}

/* ---- Cutting -------------------------------------------------------------------------------- */

/* How a task is done: k, then either its columns or none are split. */
typedef struct blocks {
  int64_t k, n;
  int64_t a, b; /* floats of what is packed at a time */
  int32_t rows_stay;
} blocks;

static int64_t packed_floats(int64_t floats) { return df_round_up(floats + DF_LANES, ALIGN); }

/* Steps of k of a block are a multiple of |align|. */
static blocks blocks_of(int64_t m, int64_t n, int64_t k, int64_t align) {
  blocks by = {.k = df_round_up(df_even_split(k, K_BLOCK), align),
               .n = n,
               .rows_stay = m <= M_BLOCK && n > m};
  if (!by.rows_stay)
    by.n = df_round_up(df_even_split(n, N_BLOCK), DF_TILE_COLUMNS);
  by.a = packed_floats(by.k * (by.rows_stay ? df_round_up(m, DF_TILE_ROWS) : DF_TILE_ROWS));
  by.b = packed_floats(by.k * (by.rows_stay ? 2 * DF_TILE_COLUMNS : by.n));
  return by;
}

/* Time of the longest row of tasks, in steps of one vector: work of a tile, and packing. */
static double split_cost(int64_t tiles_down, int64_t tiles_across, int64_t down, int64_t across,
                         int64_t batch, int32_t threads) {
  int64_t rounds = df_divide_up(down * across * batch, threads);
  double rows = (double)df_divide_up(tiles_down, down);
  double columns = (double)df_divide_up(tiles_across, across);
  double tile = DF_TILE_ROWS * DF_TILE_VECTORS * 0.5;
  return (double)rounds * (rows * columns * tile + rows * 6.0 + columns * 12.0);
}

static df_gemm_split split_of(int64_t m, int64_t n, int64_t k, int64_t batch, int32_t threads,
                              int64_t align) {
  df_gemm_split split = {.rows = m, .columns = n, .down = 1, .across = 1};
  int64_t tiles_down = df_divide_up(m, DF_TILE_ROWS);
  int64_t tiles_across = df_divide_up(n, DF_TILE_COLUMNS);
  if (threads > 1 && m * n * k > SMALL) {
    double best = 0.0;
    for (int64_t down = 1; down <= df_min(tiles_down, 2 * threads); down++)
      for (int64_t across = 1; across <= df_min(tiles_across, 2 * threads); across++) {
        double cost = split_cost(tiles_down, tiles_across, down, across, batch, threads);
        if (best == 0.0 || cost < best) {
          best = cost;
          split.down = down;
          split.across = across;
        }
      }
  }
  split.rows = df_divide_up(tiles_down, split.down) * DF_TILE_ROWS;
  split.columns = df_divide_up(tiles_across, split.across) * DF_TILE_COLUMNS;
  split.down = df_divide_up(m, split.rows);
  split.across = df_divide_up(n, split.columns);
  blocks by = blocks_of(split.rows, split.columns, k, align);
  split.scratch = by.a + by.b;
  return split;
}

df_gemm_split DF_NAME(df_gemm_float32_split)(int64_t m, int64_t n, int64_t k, int64_t batch,
                                             int32_t threads) {
  return split_of(m, n, k, batch, threads, 1);
}

df_gemm_split DF_NAME(df_gemm_blocks_split)(int64_t m, int64_t n, int64_t k, int64_t batch,
                                            int32_t threads) {
  return split_of(m, n, k, batch, threads, DF_BLOCKS_STEPS);
}

void DF_NAME(df_gemm_float32_task)(const df_gemm *gemm, const df_gemm_split *split, int64_t index,
                                   float *scratch) {
  int64_t i = index / split->across * split->rows;
  int64_t j = index % split->across * split->columns;
  df_gemm rows = df_gemm_rows(gemm, i, df_min(split->rows, gemm->m - i));
  df_gemm task = df_gemm_columns(&rows, j, df_min(split->columns, gemm->n - j));
  blocks by = blocks_of(split->rows, split->columns, gemm->k, gemm->blocks ? DF_BLOCKS_STEPS : 1);
  const float *panels = gemm->prepacked;
  const int once = by.rows_stay && is_read_once(&task) && !panels;
  for (int64_t from = 0; from < task.n; from += by.n)
    for (int64_t p = 0; p < task.k || p == 0; p += df_max(1, by.k)) {
      work w = {.gemm = df_gemm_columns(&task, from, df_min(by.n, task.n - from)),
                .height = df_divide_up(task.m, df_divide_up(task.m, DF_TILE_ROWS)),
                .form = once ? PACKED : form_of(&task),
                .later = !task.blocks && !panels && p + by.k < task.k
                             ? df_gemm_b(&task, (p + by.k) * task.b_row)
                             : NULL,
                .a = scratch,
                .b = scratch + by.a,
                .panels = panels ? panels + (j + from) * task.k : NULL,
                .steps = task.k,
                .at = p};
      df_gemm_steps(&w.gemm, p, df_min(by.k, task.k - p));
      if (panels)
        pass_over_panels(&w, by.rows_stay);
      else if (once)
        pass_over_once(&w, task.k * task.n > CACHED ? STREAMS : w.gemm.k, by.b);
      else if (by.rows_stay)
        pass_over_rows(&w);
      else
        pass_over_columns(&w);
    }
}
