/* conv/amx/outer.c: dw[f][c][tap] = sum over images and flat positions q of
 * x[c][q + shift(tap)] * dy[f][q].
 *
 * Channels of x are the rows of the product, with positions as its steps: words of a line lie as a
 * tile of a wants them, wherever it begins, so a tap is an address. Filters of dy are the columns,
 * with zeros at positions that are dropped. A task is a panel of filters and some of channels: a
 * chunk of dy stays in the first cache, while the same positions of each block of channels pass
 * over it, 2 KiB per term and 64 cycles, once for each tap. */
#include "conv/amx/outer.h"
#include "conv/amx/grid.h"
#include "conv/common.h"
#include "gemm/amx/gemm.h"
#include "gemm/amx/tile.h"

enum {
  CHUNK = 8,                 /* blocks of 32 positions */
  GROUP_BYTES = 8192 * 1024, /* of images packed at a time */
  SUM_TILES = 128,           /* panels of sums of a task: 512 KiB */
  PANEL = DF_AMX_PANEL * DF_AMX_PANEL,
  LINE = 64
};

/* Cycles of an image, as measured, here and in float32. Rows of a tile of x lie across two cache
 * lines: a block of 32 positions takes three times what its products take. */
int DF_NAME(df_amx_outer_takes)(const df_conv *conv) {
  static const double block[] = {210.0, 520.0, 950.0}, packing[] = {1.1, 2.4, 2.6};
  const df_window *w = &conv->window;
  const int terms = df_amx_terms(conv->precision);
  df_grid g;
  if (!terms || !df_amx_granted() || conv->groups != 1 || w->kernel[0] != 1 || w->in[0] != 1 ||
      w->pad[0] != 0 || w->stride[0] != 1 || w->out_size == 0 || conv->channels == 0 ||
      conv->filters == 0 || !DF_NAME(df_grid_make)(&g, conv, terms))
    return 0;
  const int64_t pairs = g.blocks * df_divide_up(conv->filters, DF_AMX_PANEL) * g.taps;
  const int64_t blocks = df_divide_up(g.positions, DF_AMX_STEPS);
  const int64_t elements =
      g.blocks * DF_AMX_STEPS * g.phases * g.plane + conv->filters * g.positions;
  const double each = (double)blocks * block[terms - 1] +
                      (double)df_divide_up(blocks, CHUNK) * 450.0 +
                      2000.0 / (double)df_max(1, conv->batch);
  const double amx = (double)pairs * each + (double)elements * packing[terms - 1];
  return amx < (double)(conv->filters * conv->channels * w->taps * w->out_size) / 31.0;
}

typedef struct group {
  const df_conv *conv;
  const float *x, *dy;
  float *dw;
  df_grid grid;
  int64_t filter_panels;
  int64_t blocks;            /* of positions */
  int64_t channels, splits;  /* blocks of channels in a task, and how many such */
  int64_t dy_words, x_words; /* of an image */
  int64_t images, first, count;
  uint32_t *largest;
  uint16_t *packed;
} group;

static group group_of(const df_conv *conv, int32_t threads) {
  group j = {.conv = conv, .filter_panels = df_divide_up(conv->filters, DF_AMX_PANEL)};
  const int terms = df_amx_terms(conv->precision);
  DF_NAME(df_grid_make)(&j.grid, conv, terms);
  j.blocks = df_divide_up(j.grid.positions, DF_AMX_STEPS);
  j.dy_words = j.filter_panels * df_amx_words(j.grid.positions, terms);
  j.x_words = df_round_up(j.grid.image_words, LINE);
  j.images = df_max(1, df_min(conv->batch, GROUP_BYTES / 2 / (j.dy_words + j.x_words)));
  const int64_t most = df_max(1, SUM_TILES / j.grid.taps);
  const int64_t wanted = threads > 1 ? df_divide_up(2 * threads, j.filter_panels) : 1;
  j.channels = df_min(most, df_divide_up(j.grid.blocks, df_min(j.grid.blocks, wanted)));
  j.splits = df_divide_up(j.grid.blocks, j.channels);
  return j;
}

static int64_t largest_bytes(const group *j) {
  return df_round_up(j->images * (j->grid.blocks + j->filter_panels) * (int64_t)sizeof(uint32_t),
                     LINE);
}

static int64_t sums_floats(const group *j) { return j->channels * j->grid.taps * PANEL; }

int64_t DF_NAME(df_amx_outer_workspace)(const df_conv *conv, int32_t threads) {
  const group j = group_of(conv, threads);
  return largest_bytes(&j) + j.images * (j.dy_words + j.x_words) * (int64_t)sizeof(uint16_t) +
         df_workers(threads, j.filter_panels * j.splits) * sums_floats(&j) * (int64_t)sizeof(float);
}

/* ---- Packing -------------------------------------------------------------------------------- */

/* A panel of filters: 32 positions at a time, in the order of the planes of x. */
static uint32_t pack_filters(uint16_t *out, const group *j, const float *from, int64_t filter) {
  const df_grid *g = &j->grid;
  const int64_t plane = j->conv->window.out_size;
  const int64_t lanes = df_min(DF_AMX_PANEL, j->conv->filters - filter);
  from += filter * plane;
  if (g->span == g->width) {
    const df_amx_source source = {from, plane, 1, lanes, g->positions};
    return DF_NAME(df_amx_pack)(out, &source, (int)g->terms, DF_AMX_B);
  }
  float gathered[DF_AMX_PANEL * DF_AMX_STEPS];
  uint32_t largest = 0;
  for (int64_t q = 0; q < g->positions; q += DF_AMX_STEPS) {
    memset(gathered, 0, sizeof gathered);
    for (int64_t at = q, end = df_min(q + DF_AMX_STEPS, g->positions); at < end;) {
      const int64_t y = at / g->span, x = at % g->span, run = df_min(end - at, g->span - x);
      const int64_t wanted = df_max(0, df_min(run, g->width - x));
      DF_ASSUME(run > 0);
      for (int64_t lane = 0; lane < lanes; lane++)
        for (int64_t i = 0; i < wanted; i++)
          gathered[lane * DF_AMX_STEPS + at - q + i] = from[lane * plane + y * g->width + x + i];
      at += run;
    }
    const df_amx_source source = {gathered, DF_AMX_STEPS, 1, lanes, DF_AMX_STEPS};
    const uint32_t found = DF_NAME(df_amx_pack)(out, &source, (int)g->terms, DF_AMX_B);
    largest = found > largest ? found : largest;
    out += df_amx_words(DF_AMX_STEPS, (int)g->terms);
  }
  return largest;
}

static uint16_t *image_of(const group *j, int64_t image) {
  return j->packed + image * (j->x_words + j->dy_words);
}

/* at: image, block of channels or behind these panel of filters. */
static void pack_task(const void *context, const int64_t *at, float *scratch) {
  (void)scratch;
  const group *j = context;
  const df_conv *conv = j->conv;
  const int64_t image = at[0], filter = at[1] - j->grid.blocks;
  uint32_t *largest = j->largest + image * (j->grid.blocks + j->filter_panels) + at[1];
  uint16_t *out = image_of(j, image);
  if (filter < 0)
    *largest = DF_NAME(df_grid_pack_lines)(
        out, &j->grid, j->x + (j->first + image) * conv->channels * conv->window.in_size,
        conv->channels, at[1]);
  else
    *largest = pack_filters(
        out + j->x_words + filter * df_amx_words(j->grid.positions, (int)j->grid.terms), j,
        j->dy + (j->first + image) * conv->filters * conv->window.out_size, filter * DF_AMX_PANEL);
}

/* ---- Products ------------------------------------------------------------------------------- */

/* Adds blocks [begin, end) of positions of an image to the sums of a task. */
static void add_chunk(const group *j, int64_t image, int64_t filter, int64_t channel, int64_t last,
                      int64_t begin, int64_t end, float *sums) {
  const df_grid *g = &j->grid;
  const int terms = (int)g->terms;
  const int64_t words = df_amx_words(DF_AMX_STEPS, terms);
  const uint16_t *x = image_of(j, image);
  const uint16_t *dy = x + j->x_words + filter * j->blocks * words;
  const df_amx_factor b = df_amx_packed(dy + begin * words, terms);
  const int64_t columns = df_min(DF_AMX_PANEL, j->conv->filters - filter * DF_AMX_PANEL);
  const df_tile_epilogue epilogue = {.accumulate = 1};
  float some[PANEL] __attribute__((aligned(64)));
  for (; channel < last; channel++)
    for (int64_t tap = 0; tap < g->taps; tap++, sums += PANEL) {
      const int64_t rows = df_min(DF_AMX_PANEL, j->conv->channels - channel * DF_AMX_PANEL);
      const df_amx_factor a = {.data = x + channel * g->block_words + df_grid_line_words(g, tap) +
                                       begin * DF_AMX_STEPS,
                               .block = DF_AMX_STEPS,
                               .tile = DF_AMX_TILE * g->plane,
                               .term = g->block_words / g->terms,
                               .row = g->plane};
      DF_NAME(df_amx_multiply)(some, &a, &b, end - begin, terms, rows, columns, g->taps == 1, NULL);
      DF_NAME(df_amx_epilogue)(sums, DF_AMX_PANEL, some, rows, columns, &epilogue);
    }
}

/* Sums of a task to dw, whose rows are filters. */
static void send(const group *j, int64_t filter, int64_t channel, int64_t last, const float *sums) {
  const int64_t taps = j->grid.taps, all = j->conv->channels;
  const int64_t columns = df_min(DF_AMX_PANEL, j->conv->filters - filter);
  for (int64_t block = channel; block < last; block++, sums += taps * PANEL) {
    const int64_t rows = df_min(DF_AMX_PANEL, all - block * DF_AMX_PANEL);
    for (int64_t f = 0; f < columns; f++) {
      float *to = j->dw + ((filter + f) * all + block * DF_AMX_PANEL) * taps;
      for (int64_t c = 0; c < rows; c++)
        for (int64_t tap = 0; tap < taps; tap++, to++) {
          const float sum = sums[tap * PANEL + c * DF_AMX_PANEL + f];
          *to = j->first ? *to + sum : sum;
        }
    }
  }
}

/* at: panel of filters, split of the channels. */
static void multiply_task(const void *context, const int64_t *at, float *sums) {
  const group *j = context;
  const int64_t filter = at[0], channel = at[1] * j->channels;
  const int64_t last = df_min(j->grid.blocks, channel + j->channels);
  memset(sums, 0, (size_t)sums_floats(j) * sizeof *sums);
  DF_NAME(df_amx_open)();
  for (int64_t image = 0; image < j->count; image++)
    for (int64_t begin = 0; begin < j->blocks; begin += CHUNK)
      add_chunk(j, image, filter, channel, last, begin, df_min(j->blocks, begin + CHUNK), sums);
  DF_NAME(df_amx_close)();
  send(j, filter * DF_AMX_PANEL, channel, last, sums);
}

int DF_NAME(df_amx_outer_run)(const df_call *call, const df_conv *conv, float *dw, const float *x,
                              const float *dy) {
  group j = group_of(conv, call->threads);
  j.x = x;
  j.dy = dy;
  j.dw = dw;
  j.largest = call->workspace;
  j.packed = (uint16_t *)((char *)call->workspace + largest_bytes(&j));
  float *sums = (float *)(j.packed + j.images * (j.x_words + j.dy_words));
  for (; j.first < conv->batch; j.first += j.images) {
    j.count = df_min(j.images, conv->batch - j.first);
    const int64_t panels = j.count * (j.grid.blocks + j.filter_panels);
    DF_NAME(df_run_tasks)
    (call, &(df_tasks){.run = pack_task,
                       .context = &j,
                       .axes = 2,
                       .size = {j.count, j.grid.blocks + j.filter_panels}});
    for (int64_t i = 0; i < panels; i++)
      if (!df_amx_ordinary(j.largest[i]))
        return 0;
    DF_NAME(df_run_tasks)
    (call, &(df_tasks){.run = multiply_task,
                       .context = &j,
                       .axes = 2,
                       .size = {j.filter_panels, j.splits},
                       .workspace = sums,
                       .scratch = sums_floats(&j)});
  }
  return 1;
}
