/* conv/amx/conv.c: taps as steps of a product.
 *
 * The plain loop, in float32 from the sums of the terms, is plain_image below. AMX takes, for
 * each panel of 32 filters and 32 positions, a tile of weights and one of positions per term, block
 * of 32 channels and tap: 64 cycles per pair of terms for 2 KiB of weights, from the second cache,
 * and 2 KiB of positions, which taps of a block have in common and find in the first. Positions go
 * in chunks that the second cache holds with their channels. Packing an image costs a load and
 * terms stores per element, 1 / (filters * taps / 512) of the products. */
#include "conv/amx/conv.h"
#include "conv/amx/grid.h"
#include "conv/common.h"
#include "conv/winograd.h"
#include "gemm/amx/gemm.h"
#include "gemm/amx/tile.h"

enum {
  CHUNK_BYTES = 512 * 1024,  /* of packed positions */
  GROUP_BYTES = 4096 * 1024, /* of images packed at a time */
  LINE = 64
};

/* ---- The choice ----------------------------------------------------------------------------- */

int DF_NAME(df_amx_conv_can)(const df_conv *conv) {
  const df_window *w = &conv->window;
  const int terms = df_amx_terms(conv->precision);
  df_grid grid;
  return terms && df_amx_granted() && conv->groups == 1 && w->kernel[0] == 1 && w->in[0] == 1 &&
         w->pad[0] == 0 && w->stride[0] == 1 && w->out_size > 0 && conv->channels > 0 &&
         DF_NAME(df_grid_make)(&grid, conv, terms);
}

/* Cycles of an image, as measured, here and with float32. */
int DF_NAME(df_amx_conv_takes)(const df_conv *conv) {
  static const double products[] = {1.0, 3.0, 6.0}, packing[] = {0.7, 1.1, 1.6};
  const df_window *w = &conv->window;
  df_grid g;
  if (!DF_NAME(df_amx_conv_can)(conv))
    return 0;
  const int terms = df_amx_terms(conv->precision);
  DF_NAME(df_grid_make)(&g, conv, terms);
  const double tiles =
      (double)(df_divide_up(conv->filters, DF_AMX_TILE) * df_divide_up(g.positions, DF_AMX_TILE));
  const double amx = tiles * (double)(g.blocks * g.taps) * products[terms - 1] * 19.0 +
                     (double)(g.blocks * DF_AMX_STEPS * g.phases * g.plane) * packing[terms - 1] +
                     (double)(conv->filters * g.positions) * 0.4;
  const double sums = (double)(conv->filters * conv->channels * w->taps * w->out_size);
  return amx < sums / (DF_NAME(df_winograd_takes)(conv) ? 80.0 : 29.0);
}

/* ---- Weights -------------------------------------------------------------------------------- */

/* Behind the largest magnitude in each panel of filters: [panel][block][tap][tile][term][word]. */
static int64_t head_words(const df_conv *conv) {
  const int64_t panels = df_divide_up(conv->filters, DF_AMX_PANEL);
  return df_divide_up(panels * (int64_t)sizeof(uint32_t), LINE) * LINE / 2;
}

static int64_t panel_words(const df_conv *conv) {
  const int64_t blocks = df_divide_up(conv->channels, DF_AMX_STEPS) * conv->window.taps;
  return df_amx_words(blocks * DF_AMX_STEPS, df_amx_terms(conv->precision));
}

int64_t DF_NAME(df_amx_conv_prepack_bytes)(const df_conv *conv) {
  return 2 * (head_words(conv) + DF_NAME(df_amx_conv_prepack_tasks)(conv) * panel_words(conv));
}

int64_t DF_NAME(df_amx_conv_prepack_tasks)(const df_conv *conv) {
  return df_divide_up(conv->filters, DF_AMX_PANEL);
}

void DF_NAME(df_amx_conv_prepack)(const df_conv *conv, const df_weight *weight, int64_t task,
                                  float *prepacked) {
  const int terms = df_amx_terms(conv->precision);
  const df_window *w = &conv->window;
  uint32_t *largest = (uint32_t *)prepacked + task;
  for (int odd = 0; odd < 2; odd++) {
    uint16_t *out = (uint16_t *)prepacked + head_words(conv) + task * panel_words(conv);
    const int64_t filter = task * DF_AMX_PANEL;
    *largest = 0;
    for (int64_t channel = 0; channel < conv->channels; channel += DF_AMX_STEPS)
      for (int64_t tap = 0; tap < w->taps; tap++, out += df_amx_words(1, terms)) {
        const int64_t offset = weight->start + filter * weight->filter + channel * weight->channel +
                               tap / w->kernel[2] * weight->tap[1] +
                               tap % w->kernel[2] * weight->tap[2];
        const df_amx_source source = {weight->data + offset, weight->filter, weight->channel,
                                      df_min(DF_AMX_PANEL, conv->filters - filter),
                                      df_min(DF_AMX_STEPS, conv->channels - channel)};
        if (odd) {
          DF_NAME(df_amx_pack_odd)(out, &source, terms, DF_AMX_A);
          *largest = UINT32_MAX;
        } else {
          const uint32_t found = DF_NAME(df_amx_pack)(out, &source, terms, DF_AMX_A);
          *largest = found > *largest ? found : *largest;
        }
      }
    if (df_amx_ordinary(*largest))
      return;
  }
}

/* ---- Running -------------------------------------------------------------------------------- */

typedef struct group {
  const df_direct *direct;
  df_grid grid;
  int64_t images; /* packed at a time */
  int64_t first, count;
  int64_t chunk, chunks; /* positions, and how many chunks they make */
  int64_t filters, filter_splits;
  int32_t ordinary; /* all weights */
  int32_t *offsets; /* of a step in an image */
  uint32_t *largest;
  uint16_t *packed;
} group;

static int64_t image_count(const df_grid *grid, int64_t batch) {
  return df_max(1, df_min(batch, GROUP_BYTES / 2 / grid->image_words));
}

static int64_t words_for(int64_t ints) { return df_divide_up(ints * 4, LINE) * LINE / 2; }

int64_t DF_NAME(df_amx_conv_workspace)(const df_conv *conv, int32_t threads) {
  (void)threads;
  df_grid grid;
  DF_NAME(df_grid_make)(&grid, conv, df_amx_terms(conv->precision));
  const int64_t images = image_count(&grid, conv->batch);
  return 2 * (words_for(grid.blocks * grid.taps) + words_for(images * grid.blocks) +
              images * df_divide_up(grid.image_words, LINE) * LINE);
}

static uint16_t *image_of(const group *j, int64_t index) {
  return j->packed + index * df_divide_up(j->grid.image_words, LINE) * LINE;
}

/* at: image, block. */
static void pack_task(const void *context, const int64_t *at, float *scratch) {
  (void)scratch;
  const group *j = context;
  const df_direct *d = j->direct;
  const int64_t image = at[0], block = at[1];
  const float *from = d->source + (j->first + image) * d->conv.channels * d->conv.window.in_size;
  j->largest[image * j->grid.blocks + block] =
      DF_NAME(df_grid_pack)(image_of(j, image), &j->grid, from, d->conv.channels, block);
}

static int image_is_ordinary(const group *j, int64_t image) {
  uint32_t largest = 0;
  for (int64_t block = 0; block < j->grid.blocks; block++) {
    const uint32_t found = j->largest[image * j->grid.blocks + block];
    largest = found > largest ? found : largest;
  }
  return df_amx_ordinary(largest);
}

/* The float that the terms of a weight make. */
static float weight_of(const df_conv *conv, const float *prepacked, int64_t filter, int64_t channel,
                       int64_t tap) {
  const int terms = df_amx_terms(conv->precision);
  const int64_t block = channel / DF_AMX_STEPS * conv->window.taps + tap;
  const int64_t tile = block * 2 + filter % DF_AMX_PANEL / DF_AMX_TILE;
  const uint16_t *at = (const uint16_t *)prepacked + head_words(conv) +
                       filter / DF_AMX_PANEL * panel_words(conv) + tile * terms * DF_AMX_WORDS +
                       filter % DF_AMX_TILE * DF_AMX_STEPS + channel % DF_AMX_STEPS;
  float sum = 0.0f;
  for (int term = terms - 1; term >= 0; term--)
    sum += df_amx_float(at[term * DF_AMX_WORDS]);
  return sum;
}

/* Element |position| of filter |filter| before bias. */
static float plain_sum(const df_direct *d, const float *image, int64_t filter, int64_t position) {
  const df_window *w = &d->conv.window;
  float sum = 0.0f;
  for (int64_t channel = 0; channel < d->conv.channels; channel++)
    for (int64_t tap = 0; tap < w->taps; tap++) {
      const int64_t y =
          position / w->out[2] * w->stride[1] - w->pad[1] + tap / w->kernel[2] * w->dilation[1];
      const int64_t x =
          position % w->out[2] * w->stride[2] - w->pad[2] + tap % w->kernel[2] * w->dilation[2];
      if (y >= 0 && y < w->in[1] && x >= 0 && x < w->in[2])
        sum += weight_of(&d->conv, d->prepacked, filter, channel, tap) *
               image[channel * w->in_size + y * w->in[2] + x];
    }
  return sum;
}

/* Some filters of an image with operands that are not ordinary. */
static void plain_image(const df_direct *d, int64_t image, int64_t begin, int64_t end) {
  const df_window *w = &d->conv.window;
  const float *from = d->source + image * d->conv.channels * w->in_size;
  for (int64_t filter = begin; filter < end; filter++)
    for (int64_t q = 0; q < w->out_size; q++) {
      const int64_t at = (image * d->conv.filters + filter) * w->out_size + q;
      float sum = plain_sum(d, from, filter, q);
      if (d->add)
        sum += d->add[at];
      if (d->bias)
        sum += d->bias[filter];
      d->out[at] = df_activate(sum, d->high);
    }
}

/* Sums of positions [q, end) to where they belong, row by row. */
static void send(const group *j, int64_t image, int64_t filter, int64_t rows, int64_t q,
                 int64_t end, const float *sums) {
  const df_direct *d = j->direct;
  const df_grid *g = &j->grid;
  const int64_t plane = d->conv.window.out_size;
  for (int64_t begin = q; begin < end;) {
    const int64_t y = begin / g->span, x = begin % g->span;
    const int64_t count = df_min(end - begin, g->span - x), wanted = df_min(count, g->width - x);
    const int64_t at = ((j->first + image) * d->conv.filters + filter) * plane + y * g->width + x;
    const df_tile_epilogue epilogue = {.row_bias = d->bias ? d->bias + filter : NULL,
                                       .add = d->add ? d->add + at : NULL,
                                       .high = d->high};
    if (wanted > 0)
      DF_NAME(df_amx_epilogue)(d->out + at, plane, sums + begin - q, rows, wanted, &epilogue);
    begin += count;
  }
}

/* at: image, chunk, split of the filters. */
static void multiply_task(const void *context, const int64_t *at, float *scratch) {
  (void)scratch;
  const group *j = context;
  const df_direct *d = j->direct;
  const df_grid *g = &j->grid;
  const int64_t image = at[0], chunk = at[1], begin = at[2] * j->filters;
  const int64_t end = df_min(d->conv.filters, begin + j->filters);
  float sums[DF_AMX_PANEL * (DF_AMX_PANEL + 2)] __attribute__((aligned(64)));
  if (!j->ordinary || !image_is_ordinary(j, image)) {
    if (chunk == 0)
      plain_image(d, j->first + image, begin, end);
    return;
  }
  DF_NAME(df_amx_open)();
  const int64_t last = df_min(g->positions, (chunk + 1) * j->chunk);
  for (int64_t filter = begin; filter < end; filter += DF_AMX_PANEL) {
    const uint16_t *weights = (const uint16_t *)d->prepacked + head_words(&d->conv) +
                              filter / DF_AMX_PANEL * panel_words(&d->conv);
    const df_amx_factor a = df_amx_packed(weights, (int)g->terms);
    const int64_t rows = df_min(DF_AMX_PANEL, end - filter);
    for (int64_t q = chunk * j->chunk; q < last; q += DF_AMX_PANEL) {
      const df_amx_factor b = {.data = image_of(j, image) + 2 * q,
                               .offsets = j->offsets,
                               .tile = 2 * DF_AMX_TILE,
                               .term = g->block_words / g->terms,
                               .row = 2 * g->plane};
      const int64_t columns = df_min(DF_AMX_PANEL, last - q);
      DF_NAME(df_amx_multiply)
      (sums, &a, &b, g->blocks * g->taps, (int)g->terms, rows, columns, 1, NULL);
      send(j, image, filter, rows, q, q + columns, sums);
    }
  }
  DF_NAME(df_amx_close)();
}

/* Chunks and splits of the filters: as many tasks as threads need. */
static void split(group *j, int32_t threads) {
  const df_grid *g = &j->grid;
  const int64_t bytes = 2 * g->blocks * DF_AMX_STEPS * g->terms * g->phases; /* of a position */
  const int64_t most = df_max(DF_AMX_PANEL, CHUNK_BYTES / bytes / DF_AMX_PANEL * DF_AMX_PANEL);
  const int64_t panels = df_divide_up(j->direct->conv.filters, DF_AMX_PANEL);
  const int64_t chunks = df_divide_up(g->positions, most);
  j->chunk = df_divide_up(df_divide_up(g->positions, chunks), DF_AMX_PANEL) * DF_AMX_PANEL;
  j->chunks = df_divide_up(g->positions, j->chunk);
  const int64_t wanted = threads > 1 ? df_divide_up(2 * threads, j->images * j->chunks) : 1;
  j->filters = df_divide_up(panels, df_min(panels, wanted)) * DF_AMX_PANEL;
  j->filter_splits = df_divide_up(j->direct->conv.filters, j->filters);
}

void DF_NAME(df_amx_conv_run)(const df_call *call, const df_direct *direct) {
  const df_conv *conv = &direct->conv;
  group j = {.direct = direct, .ordinary = 1, .offsets = call->workspace};
  DF_NAME(df_grid_make)(&j.grid, conv, df_amx_terms(conv->precision));
  const int64_t steps = j.grid.blocks * j.grid.taps;
  j.images = image_count(&j.grid, conv->batch);
  j.largest = (uint32_t *)((uint16_t *)call->workspace + words_for(steps));
  j.packed = (uint16_t *)j.largest + words_for(j.images * j.grid.blocks);
  for (int64_t i = 0; i < steps; i++)
    j.offsets[i] = (int32_t)(i / j.grid.taps * j.grid.block_words) +
                   (int32_t)df_grid_pair_words(&j.grid, i % j.grid.taps);
  for (int64_t i = 0; i < DF_NAME(df_amx_conv_prepack_tasks)(conv); i++)
    j.ordinary = j.ordinary && df_amx_ordinary(((const uint32_t *)direct->prepacked)[i]);
  split(&j, call->threads);
  for (; j.first < conv->batch; j.first += j.images) {
    j.count = df_min(j.images, conv->batch - j.first);
    DF_NAME(df_run_tasks)
    (call,
     &(df_tasks){.run = pack_task, .context = &j, .axes = 2, .size = {j.count, j.grid.blocks}});
    DF_NAME(df_run_tasks)
    (call, &(df_tasks){.run = multiply_task,
                       .context = &j,
                       .axes = 3,
                       .size = {j.count, j.chunks, j.filter_splits}});
  }
}
