/* conv/outer_plan.c: blocks of positions that fit the caches, and tasks for the threads, chosen by
 * counted cycles. */
#include "conv/outer_plan.h"
#include "conv/outer_tile.h"

enum {
  TILE_FLOATS = 1 << 15,  /* rows of a tile: 128 KiB; they come from the second cache in time */
  PANEL_FLOATS = 1 << 18, /* transposed filters: 1 MiB of the second cache */
  PHASE_FLOATS = 1 << 16, /* channels split by phases at a time */
  MOST_FILTERS = 512,     /* transposed at a time */
  MOST_POSITIONS = 2048,  /* of a block: more would only take memory */
  COPY_FLOATS = 1 << 18,  /* of all copies of dw */
  GRAIN = 256 * 1024,     /* multiply-adds of the smallest task worth a thread's while */
};

/* How often over a position may cost what its multiply-adds would with all lanes full, before dot
 * products are faster. As measured; their tiles are smaller with fewer registers, and wait less for
 * the caches. */
#define EMPTY (DF_LANES == 16 ? 1.9 : 1.25)

/* Units of a split when |total| is split |count| times, all about equal. */
static int64_t split_of(int64_t total, int64_t count) {
  return df_divide_up(total, df_max(1, df_min(total, count)));
}

/* ---- Cost ----------------------------------------------------------------------------------- */

/* Cycles per position of the sums of |rows| x |filters|: multiply-adds of vectors; where a panel
 * has one vector, loads are the limit. */
static double sum_cycles(int64_t rows, int64_t filters) {
  int64_t lanes = df_round_up(filters, DF_LANES);
  return (double)(rows * lanes) / DF_LANES * (lanes > DF_LANES ? 0.5 : 0.65);
}

/* Of transposing them. */
static double transpose_cycles(int64_t filters) {
  return 0.4 * (double)df_round_up(filters, DF_LANES);
}

/* All of it, with each channel copied as it is. */
static double position_cycles(int64_t channels, int64_t taps, int64_t filters) {
  return sum_cycles(channels * taps, filters) + transpose_cycles(filters) + 0.2 * (double)channels;
}

/* Whether dy is split by phases and x transposed. */
static int is_exchanged(const df_conv *conv) {
  return df_conv_is_plain(&conv->window) && position_cycles(conv->filters, 1, conv->channels) <
                                                position_cycles(conv->channels, 1, conv->filters);
}

int DF_NAME(df_outer_takes)(const df_conv *conv) {
  int exchanged = is_exchanged(conv);
  int64_t taps = conv->window.taps;
  double cycles = exchanged ? position_cycles(conv->filters, taps, conv->channels)
                            : position_cycles(conv->channels, taps, conv->filters);
  return cycles * 2 * DF_LANES < EMPTY * (double)(conv->filters * conv->channels * taps);
}

/* ---- Cutting -------------------------------------------------------------------------------- */

/* Blocks of positions and groups of channels that fit the caches, for tasks of p->filters. */
static void split_blocks(df_outer_plan *p) {
  const df_window *w = &p->conv.window;
  /* The rows of a tile, one after the other by channels and taps, read so many planes. */
  int64_t touched = df_min(p->conv.channels, (DF_OUTER_ROWS - 2) / w->taps + 2);
  touched = df_min(DF_OUTER_ROWS, touched * p->down.phases * p->across.phases);
  int64_t tile_floats = TILE_FLOATS / df_max(1, touched * p->span);
  int64_t positions = df_min(MOST_POSITIONS, PANEL_FLOATS / df_max(1, p->filters));
  int64_t lines = positions / df_max(1, w->out[2]);
  p->band = df_even_split(w->out[1], df_min(tile_floats - p->down.reach, lines));
  p->bands = df_divide_up(w->out[1], df_max(1, p->band));
  p->plane = df_outer_plane(p, p->band);
  p->images = 1;
  if (p->bands == 1)
    p->images =
        df_even_split(p->conv.batch, df_min(tile_floats / df_max(1, p->band + p->down.reach),
                                            lines / df_max(1, p->band)));
  p->image_blocks = df_divide_up(p->conv.batch, df_max(1, p->images));
  p->blocks = p->image_blocks * w->out[0] * p->bands;
  p->pitch = (df_divide_up(p->images * p->plane, 16) | 1) * 16;
  p->group = df_even_split(p->channels, PHASE_FLOATS / (p->pitch * w->kernel[0]));
}

/* Cycles of a block in a task, about: sums; transposing; copying by phases, where each row has a
 * beginning; and adding to dw. What is transposed or copied comes from far: a float takes longer
 * than its copy, and one that is skipped comes along. */
static double block_cycles(const df_outer_plan *p) {
  const df_window *w = &p->conv.window;
  int64_t positions = p->images * p->band * w->out[2], rows = p->channels * w->taps;
  int64_t planes = p->channels * w->kernel[0] * p->images;
  int64_t lines = p->span > 1 ? p->plane / p->span : 1;
  double far = 0.6, skipped = (double)w->stride[2] / (double)p->across.phases;
  return (double)positions * (sum_cycles(rows, p->filters) + transpose_cycles(p->filters) +
                              far * (double)p->filters) +
         (double)planes * (10.0 * (double)lines + (0.2 + far * skipped) * (double)p->plane) +
         0.8 * (double)(rows * p->filters);
}

/* Cycles of the busiest thread. */
static double split_cycles(const df_outer_plan *p, int32_t threads) {
  int64_t tasks = p->block_splits * p->channel_splits * p->filter_splits * p->conv.groups;
  return (double)df_divide_up(tasks, threads) * (double)df_divide_up(p->blocks, p->block_splits) *
             block_cycles(p) +
         (double)(p->block_splits - 1) * (double)p->total;
}

static void split_tasks(df_outer_plan *p, int32_t threads) {
  const df_conv *conv = &p->conv;
  int64_t work = df_times(p->total, conv->batch * conv->window.out_size);
  int64_t wanted = threads > 1 ? df_max(1, df_min(2 * (int64_t)threads, work / GRAIN)) : 1;
  int64_t least = df_max(1, df_divide_up(conv->filters, MOST_FILTERS));
  p->block_splits = 1;
  df_outer_plan best = *p;
  double cost = -1.0;
  for (int64_t filter_splits = least; filter_splits <= least * wanted; filter_splits *= 2) {
    p->filters = df_round_up(split_of(conv->filters, filter_splits), DF_LANES);
    p->filters = df_min(conv->filters, p->filters);
    p->filter_splits = df_divide_up(conv->filters, df_max(1, p->filters));
    for (int64_t channel_splits = 1; channel_splits <= wanted; channel_splits *= 2) {
      p->channels = split_of(conv->channels, channel_splits);
      p->channel_splits = df_divide_up(conv->channels, df_max(1, p->channels));
      split_blocks(p);
      for (p->block_splits = 1; p->block_splits <= df_min(wanted, p->blocks); p->block_splits++) {
        if (p->block_splits > 1 && df_times(p->block_splits - 1, p->total) > COPY_FLOATS)
          break;
        double this = split_cycles(p, threads);
        if (cost < 0.0 || this < cost) {
          cost = this;
          best = *p;
        }
      }
    }
  }
  *p = best;
}

df_outer_plan DF_NAME(df_outer_make_plan)(const df_conv *conv, int32_t threads) {
  df_outer_plan p = {.conv = *conv};
  df_window *w = &p.conv.window;
  if (df_conv_is_plain(w)) {
    /* One axis of positions. */
    *w = (df_window){.in = {1, w->in_size, 1},
                     .out = {1, w->out_size, 1},
                     .kernel = {1, 1, 1},
                     .stride = {1, 1, 1},
                     .dilation = {1, 1, 1},
                     .in_size = w->in_size,
                     .out_size = w->out_size,
                     .taps = 1};
    p.exchanged = is_exchanged(conv);
    if (p.exchanged) {
      p.conv.filters = conv->channels;
      p.conv.channels = conv->filters;
    }
  }
  p.down = df_phase_layout_make(w, 1, 0);
  p.across = df_phase_layout_make(w, 2, 0);
  p.span = p.across.grid + p.across.reach;
  p.k = p.conv.channels * w->taps;
  p.total = conv->groups * conv->filters * conv->channels * w->taps;
  split_tasks(&p, threads);
  p.scratch = DF_OUTER_ROWS * DF_OUTER_COLUMNS +
              df_round_up(p.filters, DF_LANES) * p.images * p.band * w->out[2] +
              p.group * w->kernel[0] * p.pitch + p.group * w->taps;
  p.scratch = df_round_up(p.scratch, 16);
  return p;
}
