/* gemm/amx/gemm.c: packing and the loops around the tiles, as in gemm/float32.c.
 *
 * The plain loop, where terms(x) are the bfloat16 terms of a float:
 *   c[i][j] = sum over k blocks, kept pairs (q, r) of terms and p in the block of
 *             terms(a[i][p])[q] * terms(b[p][j])[r]
 *
 * The panels of one operand stay packed in the second cache; those of the other are packed one by
 * one into the first and pass over them. For each block of 32 steps a pair of panels takes 64
 * cycles per product of terms and reads 2 KiB per term of each: of the panel that passes from the
 * first cache, of those that stay from the second, which gives 32 bytes and more per cycle. Steps
 * of k go in blocks, for which c is read and written once more. */
#include "gemm/amx/gemm.h"
#include "gemm/amx/tile.h"
#include "gemm/float32.h"
#include "gemm/split.h"

enum {
  MOST_STAY = 32,    /* panels: 1 MiB at most, half of the second cache */
  SMALL = 64 * 1024, /* multiply-adds below which a second thread does not pay */
  LINE = 16          /* floats of a cache line */
};

/* How a task is done. */
typedef struct plan {
  int64_t k;    /* steps in a block */
  int64_t stay; /* most lanes whose panels stay */
  int32_t rows_stay;
  int64_t words;             /* of a panel */
  df_gemm_split float_split; /* of a product of two panels in float32 */
} plan;

static plan plan_of(int64_t m, int64_t n, int64_t k, int terms) {
  static const int64_t steps[] = {512, 256, 128}; /* 24 to 32 KiB of a panel in the first cache */
  const int64_t lanes = MOST_STAY * DF_AMX_PANEL;
  plan plan = {.rows_stay = m <= lanes && n > m};
  plan.k = df_divide_up(df_even_split(k, steps[terms - 1]), DF_AMX_STEPS) * DF_AMX_STEPS;
  plan.stay = plan.rows_stay ? m : df_even_split(n, lanes);
  plan.stay = df_divide_up(plan.stay, DF_AMX_PANEL) * DF_AMX_PANEL;
  plan.words = df_amx_words(plan.k, terms);
  plan.float_split = DF_NAME(df_gemm_float32_split)(DF_AMX_PANEL, DF_AMX_PANEL, plan.k, 1, 1);
  return plan;
}

/* ---- Cutting -------------------------------------------------------------------------------- */

/* Cycles of one thread, as measured, for a task. */
static double task_cost(int64_t m, int64_t n, int64_t k, int terms) {
  static const double products[] = {1.0, 3.0, 6.0}, packing[] = {0.35, 0.6, 1.0};
  const plan plan = plan_of(m, n, k, terms);
  const double tiles = (double)(df_divide_up(m, DF_AMX_TILE) * df_divide_up(n, DF_AMX_TILE));
  const double blocks = (double)df_divide_up(k, DF_AMX_STEPS);
  const double ends = (double)df_divide_up(k, plan.k), again = (double)df_divide_up(n, plan.stay);
  const double packed = (double)n + (double)m * (plan.rows_stay ? 1.0 : again);
  return 500.0 + tiles * (blocks * products[terms - 1] * 17.0 + ends * 60.0) +
         packed * (double)k * packing[terms - 1];
}

/* The same for gemm/gemm.c. */
static double float_cost(int64_t m, int64_t n, int64_t k) {
  return (double)(m * n * k) / 27.0 + (double)((m + n) * k) * 0.2 + (double)(m * n) * 0.2;
}

static double split_cost(const df_gemm_split *split, int64_t k, int64_t batch, int32_t threads) {
  const int64_t rounds = df_divide_up(split->down * split->across * batch, threads);
  return (double)rounds * (split->terms ? task_cost(split->rows, split->columns, k, split->terms)
                                        : float_cost(split->rows, split->columns, k));
}

/* Tasks of whole panels. */
static df_gemm_split split_into(int64_t m, int64_t n, int64_t down, int64_t across, int terms) {
  const int64_t rows = df_divide_up(df_divide_up(m, DF_AMX_PANEL), down) * DF_AMX_PANEL;
  const int64_t columns = df_divide_up(df_divide_up(n, DF_AMX_PANEL), across) * DF_AMX_PANEL;
  return (df_gemm_split){.rows = df_min(m, rows),
                         .columns = df_min(n, columns),
                         .down = df_divide_up(m, rows),
                         .across = df_divide_up(n, columns),
                         .terms = terms};
}

df_gemm_split DF_NAME(df_gemm_amx_split)(int64_t m, int64_t n, int64_t k, int64_t batch,
                                         int32_t threads, int32_t precision) {
  const int terms = df_amx_terms(precision);
  if (!terms || m * n * k <= 0 || !df_amx_granted())
    return (df_gemm_split){0};
  df_gemm_split best = split_into(m, n, 1, 1, terms);
  if (threads > 1 && m * n * k > SMALL)
    for (int64_t down = 1; down <= df_min(df_divide_up(m, DF_AMX_PANEL), 2 * threads); down++)
      for (int64_t across = 1; across <= df_min(df_divide_up(n, DF_AMX_PANEL), 2 * threads);
           across++) {
        const df_gemm_split split = split_into(m, n, down, across, terms);
        if (split_cost(&split, k, batch, threads) < split_cost(&best, k, batch, threads))
          best = split;
      }
  const df_gemm_split other = DF_NAME(df_gemm_float32_split)(m, n, k, batch, threads);
  if (split_cost(&other, k, batch, threads) <= split_cost(&best, k, batch, threads))
    return (df_gemm_split){0};
  const plan plan = plan_of(best.rows, best.columns, k, terms);
  const int64_t panels = 2 + plan.stay / DF_AMX_PANEL;
  best.scratch = panels * plan.words / 2 + plan.float_split.scratch;
  if (terms == 1)
    best.scratch += DF_AMX_PANEL * plan.k; /* of a packed panel in float32 */
  return best;
}

/* ---- A constant b --------------------------------------------------------------------------- */

/* The largest magnitude in each panel, then the panels, each of all steps. */
static int64_t head_bytes(int64_t n) {
  return df_divide_up(df_divide_up(n, DF_AMX_PANEL) * (int64_t)sizeof(uint32_t), 64) * 64;
}

static uint16_t *prepacked_panel(const df_gemm *gemm, const void *prepacked, int64_t k,
                                 int64_t panel) {
  return (uint16_t *)((char *)prepacked + head_bytes(gemm->n)) + panel * df_amx_words(k, 1);
}

int64_t DF_NAME(df_gemm_amx_prepack_bytes)(int64_t n, int64_t k) {
  const int64_t bytes = head_bytes(n) + df_divide_up(n, DF_AMX_PANEL) * df_amx_words(k, 1) * 2;
  return bytes <= n * k * (int64_t)sizeof(float) ? bytes : 0;
}

/* Whether a number is one that packing takes for zero: an infinity times it is none. */
static int has_denormals(const df_amx_source *s) {
  int found = 0;
  for (int64_t step = 0; step < s->steps; step++)
    for (int64_t lane = 0; lane < s->lanes; lane++) {
      const float size = __builtin_fabsf(s->data[lane * s->lane_row + step * s->step_row]);
      found |= size > 0.0f && size < 0x1p-126f;
    }
  return found;
}

void DF_NAME(df_gemm_amx_prepack)(const df_gemm *g, void *prepacked) {
  uint32_t *largest = prepacked;
  for (int64_t j = 0; j < g->n; j += DF_AMX_PANEL, largest++) {
    uint16_t *to = prepacked_panel(g, prepacked, g->k, j / DF_AMX_PANEL);
    const df_amx_source source = {g->b + j * g->b_col, g->b_col, g->b_row,
                                  df_min(DF_AMX_PANEL, g->n - j), g->k};
    *largest = DF_NAME(df_amx_pack)(to, &source, 1, DF_AMX_B);
    if (!df_amx_ordinary(*largest) || has_denormals(&source))
      DF_NAME(df_amx_pack_odd)(to, &source, 1, DF_AMX_B);
  }
}

/* The first |lanes| of a panel in float32 again: out[step][lane]. */
static void unpack(float *out, const uint16_t *words, int64_t k, int64_t lanes) {
  for (int64_t p = 0; p < k; p++)
    for (int64_t j = 0; j < lanes; j++) {
      const int64_t tile = p / DF_AMX_STEPS * 2 + j / DF_AMX_TILE, step = p % DF_AMX_STEPS;
      out[p * DF_AMX_PANEL + j] = df_amx_float(
          words[tile * DF_AMX_WORDS + step / 2 * DF_AMX_STEPS + j % DF_AMX_TILE * 2 + step % 2]);
    }
}

/* ---- One task ------------------------------------------------------------------------------- */

/* A panel and whether all of it is ordinary. */
typedef struct panel {
  const uint16_t *words;
  int32_t ordinary;
} panel;

/* Some columns and steps of a task. */
typedef struct work {
  df_gemm gemm;
  const plan *plan;
  int terms;
  float *scratch; /* for float32 */
  /* Of a prepacked b: the complete product, and where columns and steps of this work begin. */
  const df_gemm *product;
  int64_t panel, block;
} work;

/* The panel at |at| of the rows of a, or of the columns of b. */
static df_amx_source source_of(const work *w, int rows, int64_t at) {
  const df_gemm *g = &w->gemm;
  if (rows)
    return (df_amx_source){g->a + at * g->a_row, g->a_row, g->a_col,
                           df_min(DF_AMX_PANEL, g->m - at), g->k};
  return (df_amx_source){g->b + at * g->b_col, g->b_col, g->b_row, df_min(DF_AMX_PANEL, g->n - at),
                         g->k};
}

static panel pack(const work *w, uint16_t *to, int rows, int64_t at) {
  const df_amx_source source = source_of(w, rows, at);
  const uint32_t largest = DF_NAME(df_amx_pack)(to, &source, w->terms, rows ? DF_AMX_A : DF_AMX_B);
  return (panel){to, df_amx_ordinary(largest)};
}

/* A panel of b, packed to |to| or long ago. */
static panel pack_columns(const work *w, uint16_t *to, int64_t j) {
  const df_gemm *g = w->product;
  if (!g->prepacked)
    return pack(w, to, 0, j);
  const int64_t at = w->panel + j / DF_AMX_PANEL;
  return (panel){prepacked_panel(g, g->prepacked, g->k, at) + w->block * df_amx_words(1, 1),
                 df_amx_ordinary(((const uint32_t *)g->prepacked)[at])};
}

/* The sums of two panels, to c. */
static void multiply_panels(const work *w, int64_t i, int64_t j, panel a, panel b,
                            df_amx_later *later) {
  const df_gemm rows = df_gemm_rows(&w->gemm, i, df_min(DF_AMX_PANEL, w->gemm.m - i));
  df_gemm g = df_gemm_columns(&rows, j, df_min(DF_AMX_PANEL, w->gemm.n - j));
  if (!a.ordinary || !b.ordinary) {
    if (w->product->prepacked) {
      float *floats = w->scratch + w->plan->float_split.scratch;
      unpack(floats, b.words, g.k, g.n);
      g.b = floats;
      g.b_row = DF_AMX_PANEL;
      g.b_col = 1;
      g.prepacked = NULL;
    }
    DF_NAME(df_gemm_float32_task)(&g, &w->plan->float_split, 0, w->scratch);
    return;
  }
  for (int64_t row = 0; row < g.m; row++) { /* written when the sums are there */
    __builtin_prefetch(g.c + row * g.c_row, 1);
    __builtin_prefetch(g.c + row * g.c_row + g.n - 1, 1);
  }
  float sums[DF_AMX_PANEL * DF_AMX_PANEL] __attribute__((aligned(64)));
  const df_amx_factor left = df_amx_packed(a.words, w->terms);
  const df_amx_factor right = df_amx_packed(b.words, w->terms);
  DF_NAME(df_amx_multiply)
  (sums, &left, &right, df_divide_up(g.k, DF_AMX_STEPS), w->terms, g.m, g.n, w->plan->rows_stay,
   later);
  const df_tile_epilogue epilogue = df_tile_epilogue_of(&g, 0);
  DF_NAME(df_amx_epilogue)(g.c, g.c_row, sums, g.m, g.n, &epilogue);
}

static uint32_t largest_of(const df_amx_later *later) {
  uint32_t largest = 0;
  for (int i = 0; i < 16; i++)
    largest = later->largest[i] > largest ? later->largest[i] : largest;
  return largest;
}

/* Asks memory for share |index| of |count| of a panel whose steps lie together. */
static void fetch(const df_amx_source *s, int64_t index, int64_t count) {
  for (int64_t lane = s->lanes * index / count; lane < s->lanes * (index + 1) / count; lane++)
    for (int64_t step = 0; step < s->steps; step += LINE)
      __builtin_prefetch(s->data + lane * s->lane_row + step, 0, 2);
}

/* Panels of b pass over all of a. The next one comes from memory meanwhile: it is packed bit by bit
 * while others are multiplied, where its form allows that. */
static void pass_over_rows(const work *w, uint16_t *words) {
  const df_gemm *g = &w->gemm;
  const int64_t count = df_divide_up(g->m, DF_AMX_PANEL), blocks = df_divide_up(g->k, DF_AMX_STEPS);
  panel stay[MOST_STAY];
  for (int64_t i = 0; i < count; i++)
    stay[i] = pack(w, words + (2 + i) * w->plan->words, 1, i * DF_AMX_PANEL);
  uint16_t *other = words + w->plan->words;
  panel pass = pack_columns(w, words, 0);
  for (int64_t j = 0; j < g->n; j += DF_AMX_PANEL) {
    const df_amx_source next = source_of(w, 0, j + DF_AMX_PANEL);
    df_amx_later later = {.from = next.data,
                          .row = next.step_row,
                          .out = other,
                          .rows = 2 * DF_AMX_TILE * blocks,
                          .count = df_divide_up(2 * DF_AMX_TILE, count)};
    const int meanwhile = !g->prepacked && next.lanes == DF_AMX_PANEL && next.lane_row == 1 &&
                          g->k % DF_AMX_STEPS == 0;
    for (int64_t i = 0; i < count; i++) {
      if (next.lanes > 0 && next.step_row == 1 && !g->prepacked)
        fetch(&next, i, count);
      multiply_panels(w, i * DF_AMX_PANEL, j, stay[i], pass, meanwhile ? &later : NULL);
    }
    uint16_t *used = (uint16_t *)pass.words;
    if (meanwhile && later.done == later.rows)
      pass = (panel){other, df_amx_ordinary(largest_of(&later))};
    else if (next.lanes > 0)
      pass = pack_columns(w, other, j + DF_AMX_PANEL);
    other = g->prepacked ? other : used;
  }
}

/* Panels of a pass over all of b. */
static void pass_over_columns(const work *w, uint16_t *words) {
  const df_gemm *g = &w->gemm;
  panel stay[MOST_STAY];
  for (int64_t j = 0; j < g->n; j += DF_AMX_PANEL)
    stay[j / DF_AMX_PANEL] = pack_columns(w, words + (2 + j / DF_AMX_PANEL) * w->plan->words, j);
  for (int64_t i = 0; i < g->m; i += DF_AMX_PANEL) {
    const panel pass = pack(w, words, 1, i);
    for (int64_t j = 0; j < g->n; j += DF_AMX_PANEL)
      multiply_panels(w, i, j, pass, stay[j / DF_AMX_PANEL], NULL);
  }
}

void DF_NAME(df_gemm_amx_task)(const df_gemm *gemm, const df_gemm_split *split, int64_t index,
                               float *scratch) {
  const plan plan = plan_of(split->rows, split->columns, gemm->k, split->terms);
  const int64_t i = index / split->across * split->rows, j = index % split->across * split->columns;
  const df_gemm rows = df_gemm_rows(gemm, i, df_min(split->rows, gemm->m - i));
  const df_gemm task = df_gemm_columns(&rows, j, df_min(split->columns, gemm->n - j));
  const int64_t most = plan.rows_stay ? task.n : plan.stay;
  const int64_t floats = plan.float_split.scratch + (split->terms == 1 ? DF_AMX_PANEL * plan.k : 0);
  uint16_t *words = (uint16_t *)(scratch + floats);
  DF_NAME(df_amx_open)();
  for (int64_t from = 0; from < task.n; from += most)
    for (int64_t p = 0; p < task.k; p += plan.k) {
      work w = {.gemm = df_gemm_columns(&task, from, df_min(most, task.n - from)),
                .plan = &plan,
                .terms = split->terms,
                .scratch = scratch,
                .product = gemm,
                .panel = (j + from) / DF_AMX_PANEL,
                .block = p / DF_AMX_STEPS};
      df_gemm_steps(&w.gemm, p, df_min(plan.k, task.k - p));
      if (plan.rows_stay)
        pass_over_rows(&w, words);
      else
        pass_over_columns(&w, words);
    }
  DF_NAME(df_amx_close)();
}
