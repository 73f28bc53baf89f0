/* conv/direct.c: convolution as a product that reads the source in reads.
 *
 *   out[f][q] = relu(bias[f] + sum over k = (channel, tap) of weight[f][k] * source[base(q) +
 * offset(k)])
 *
 * Weights are packed ahead: panels of DF_DIRECT_FILTERS filters, k steps of one line each, so a
 * tile streams through them. A tile has up to DF_DIRECT_ROWS positions. Where these lie together in
 * the source and no tap is in the padding, it is read where it is; else a line per k is gathered in
 * the workspace, zeros for the padding. k goes in blocks; the second and later ones add to the
 * output, which is written once per block. A panel passes over all tiles of a task while the next
 * one is fetched, so weights come from far once and while there is arithmetic to do. */
#include "conv/direct.h"
#include "conv/common.h"
#include "conv/direct_tile.h"
#include "conv/gather.h"

enum {
  MOST_FLOATS = 3 << 16, /* of lines that are read in rotation: 768 KiB stay in the second cache */
  MOST_TILES = 64,
  LARGE_PLANE = 48 * DF_LANES, /* positions that fill conv_apply's tiles */
  TAPS_A_PANEL = 8,            /* that may be gathered for each panel of filters */
  FEW_FILTERS = 16,            /* for which gathering lines takes as long as their products */
  GRAIN = 256 * 1024,          /* multiply-adds of the smallest task worth a thread's while */
};

static int64_t steps_of(const df_conv *conv) { return conv->channels * conv->window.taps; }

/* Steps of a block; the last one may have fewer. */
static int64_t block_of(int64_t k) { return df_divide_up(k, df_divide_up(k, DF_DIRECT_STEPS)); }

/* Floats of the prepacked weights of a group: blocks of k, in each of them the panels. */
static int64_t group_floats(const df_conv *conv) { return df_direct_lanes(conv) * steps_of(conv); }

/* ---- Packing -------------------------------------------------------------------------------- */

int64_t DF_NAME(df_direct_prepack_bytes)(const df_conv *conv) {
  return conv->groups * group_floats(conv) * (int64_t)sizeof(float);
}

/* Whether there are filters enough for gathering a line per tap: conv/shifted.c splits the source
 * once for all taps, which are more or less as many as windows overlap, but fills its tiles only on
 * large planes. */
static int gathering_pays(const df_conv *conv) {
  const df_window *w = &conv->window;
  int64_t overlap = w->taps / (w->stride[0] * w->stride[1] * w->stride[2]);
  return conv->filters > FEW_FILTERS &&
         (w->out_size < LARGE_PLANE || overlap <= TAPS_A_PANEL * df_direct_panels(conv));
}

int DF_NAME(df_direct_can)(const df_conv *conv) {
  const df_window *w = &conv->window;
  return steps_of(conv) > 0 && w->taps <= DF_MOST_TAPS &&
         df_times(conv->channels + 1, w->in_size) <= INT32_MAX;
}

int DF_NAME(df_direct_takes)(const df_conv *conv) {
  return DF_NAME(df_direct_can)(conv) && (df_conv_is_plain(&conv->window) || gathering_pays(conv));
}

/* A task is a panel in a block of k in a group. */
int64_t DF_NAME(df_direct_prepack_tasks)(const df_conv *conv) {
  int64_t k = steps_of(conv);
  return conv->groups * df_divide_up(k, block_of(k)) * df_direct_panels(conv);
}

void DF_NAME(df_direct_prepack)(const df_conv *conv, const df_weight *weight, int64_t task,
                                float *prepacked) {
  int64_t k = steps_of(conv), block = block_of(k), panels = df_direct_panels(conv);
  int64_t blocks = df_divide_up(k, block), panel = task % panels;
  int64_t begin = task / panels % blocks * block, end = df_min(k, begin + block);
  int64_t group = task / panels / blocks, width = df_direct_width(conv, panel);
  prepacked += group * group_floats(conv) + begin * df_direct_lanes(conv) +
               panel * DF_DIRECT_FILTERS * (end - begin);
  int64_t first = panel * DF_DIRECT_FILTERS;
  df_filters filters = {group, first, df_min(width, conv->filters - first), width};
  DF_NAME(df_weight_lines)(prepacked, width, conv, weight, &filters, begin, end);
}

/* ---- Cutting -------------------------------------------------------------------------------- */

typedef struct plan {
  int64_t k;
  int64_t line;     /* positions that tiles do not cross: a row of the output, or all of it */
  int64_t per_line; /* tiles of a line */
  int64_t tiles;    /* of an image */
  int64_t block;    /* k of a block */
  int64_t tile_splits;
  int64_t panel_splits;
  int64_t together; /* tiles that share a pass over the weights */
  int64_t scratch;  /* floats of a task's workspace */
  const df_direct *d;
} plan;

/* Time of one task, in cycles per step of k: tiles, gathering them, waiting for weights. */
static int64_t task_cost(int64_t tiles, int64_t panels, int plain) {
  return tiles * (DF_DIRECT_ROWS * panels + (plain ? 1 : 6)) + 4 * panels;
}

/* Splitting the tiles gathers less in a task, splitting the panels reads less of the weights. Among
 * the splits that take about the shortest time, the one with the most tasks: they even out threads
 * that are held up. */
static void split(plan *p, const df_conv *conv, int plain, int32_t threads) {
  int64_t panels = df_direct_panels(conv), units = conv->batch * conv->groups;
  int64_t work = df_times(units * conv->filters * conv->window.out_size, p->k);
  int64_t most = threads > 1 ? df_max(1, df_min(4 * (int64_t)threads, work / GRAIN)) : 1;
  int64_t best = INT64_MAX, tasks = 0;
  for (int pass = 0; pass < 2; pass++)
    for (int64_t down = 1; down <= df_min(p->tiles, most); down++)
      for (int64_t across = 1; across <= df_min(panels, most) && down * across <= most; across++) {
        int64_t count = units * down * across;
        int64_t cost = df_divide_up(count, threads) *
                       task_cost(df_divide_up(p->tiles, down), df_divide_up(panels, across), plain);
        if (pass == 0) {
          best = df_min(best, cost);
        } else if (cost <= best + best / 32 && count > tasks) {
          tasks = count;
          p->tile_splits = down;
          p->panel_splits = across;
        }
      }
}

static plan make_plan(const df_conv *conv, int32_t threads) {
  const df_window *w = &conv->window;
  plan p = {.k = steps_of(conv)};
  int64_t flat = df_divide_up(w->out_size, DF_DIRECT_ROWS);
  int64_t per_row = df_divide_up(w->out[2], DF_DIRECT_ROWS);
  int64_t by_rows = w->out[0] * w->out[1] * per_row;
  int plain = df_conv_is_plain(w);
  if (!plain && by_rows * 32 <= flat * 33) {
    p.line = w->out[2];
    p.per_line = per_row;
  } else {
    p.line = w->out_size;
    p.per_line = flat;
  }
  p.tiles = w->out_size / p.line * p.per_line;
  p.block = block_of(p.k);

  split(&p, conv, plain, threads);
  DF_ASSUME(p.tile_splits > 0);
  int64_t tiles = df_divide_up(p.tiles, p.tile_splits);
  int64_t most = df_max(1, df_min(MOST_TILES, MOST_FLOATS / (p.block * DF_LANES)));
  p.together = df_divide_up(tiles, df_divide_up(tiles, most));
  p.scratch = plain ? 0 : p.together * p.block * DF_LANES;
  return p;
}

/* The tasks of a plan, but for what they do. */
static df_tasks grid_of(const df_conv *conv, const plan *p) {
  return (df_tasks){.context = p,
                    .axes = 4,
                    .size = {conv->batch, conv->groups, p->tile_splits, p->panel_splits},
                    .scratch = p->scratch};
}

int64_t DF_NAME(df_direct_workspace)(const df_conv *conv, int32_t threads) {
  const plan p = make_plan(conv, threads);
  const df_tasks tasks = grid_of(conv, &p);
  return df_tasks_floats(&tasks, threads) * (int64_t)sizeof(float);
}

/* ---- One tile ------------------------------------------------------------------------------- */

/* A tile, and where the block of k finds what it reads. */
typedef struct spot {
  int64_t position, rows;
  const float *source;
  const int32_t *shift;
} spot;

typedef struct task {
  const df_direct *d;
  const plan *p;
  const float *source;    /* of the image and group */
  const float *prepacked; /* of the group */
  int64_t lanes;          /* of its panels */
  const float *bias;
  const float *add;
  float *out;
  float *lines;                 /* gathered: [tile][k][lane] */
  int32_t offset[DF_MOST_TAPS]; /* per tap */
} task;

static const float *panel_weight(const task *s, int64_t panel, int64_t begin, int64_t end) {
  return s->prepacked + begin * s->lanes + panel * DF_DIRECT_FILTERS * (end - begin);
}

/* The steps [begin, end) of a panel for some tiles, which fetch what is at |next| meanwhile. */
static void do_panel(const task *s, const spot *spots, int64_t count, int64_t panel, int64_t begin,
                     int64_t end, const float *next) {
  const df_conv *conv = &s->d->conv;
  int64_t size = conv->window.out_size, k = end - begin;
  int64_t filter = panel * DF_DIRECT_FILTERS, width = df_direct_width(conv, panel);
  int64_t filters = df_min(width, conv->filters - filter), vectors = width / DF_LANES;
  const float *weight = panel_weight(s, panel, begin, end);
  float sums[DF_DIRECT_ROWS * DF_DIRECT_FILTERS];
  for (int64_t i = 0; i < count; i++) {
    const spot *at = &spots[i];
    int64_t to = filter * size + at->position;
    const float *add = begin > 0 ? s->out : s->add;
    for (int64_t f = 0; f < filters; f++)
      __builtin_prefetch(s->out + to + f * size, 1);
    for (int64_t f = 0; f < filters && add; f++)
      __builtin_prefetch(add + to + f * size);
    DF_NAME(df_direct_tiles)
    [at->rows - 1][vectors - 1](k, weight, at->source, at->shift,
                                df_ahead_make(next, k *DF_DIRECT_FILTERS, k, i, count), sums);
    df_direct_send(s->out + to, add ? add + to : NULL, size, sums, at->rows, vectors, filters,
                   begin == 0 && s->bias ? s->bias + filter : NULL,
                   end == s->p->k ? s->d->high : 0.0f);
  }
}

/* ---- One task ------------------------------------------------------------------------------- */

/* Tiles [from, to) of some panels. */
static void do_tiles(const task *s, int64_t from, int64_t to, int64_t panel, int64_t last) {
  const plan *p = s->p;
  const df_window *w = &s->d->conv.window;
  int32_t in_image[DF_DIRECT_STEPS], gathered[DF_DIRECT_STEPS];
  spot spots[MOST_TILES];
  df_lane_reads t;
  for (int64_t i = 0; i < p->block; i++)
    gathered[i] = (int32_t)(i * DF_LANES);
  for (int64_t begin = 0; begin < p->k; begin += p->block) {
    int64_t end = df_min(p->k, begin + p->block);
    for (int64_t i = begin; i < end; i++)
      in_image[i - begin] = (int32_t)(i / w->taps * w->in_size) + s->offset[i % w->taps];
    for (int64_t first = from, count; first < to; first += count) {
      count = df_min(p->together, to - first);
      for (int64_t i = 0; i < count; i++) {
        int64_t tile = first + i, line = tile / p->per_line, chunk = tile % p->per_line;
        int64_t low = p->line * chunk / p->per_line, high = p->line * (chunk + 1) / p->per_line;
        spots[i] = (spot){.position = line * p->line + low, .rows = high - low};
        df_find_lane_reads(&t, w, spots[i].position, high - low);
        if (t.step == 1 && t.unpadded) {
          spots[i].source = s->source + t.base[0];
          spots[i].shift = in_image;
        } else {
          float *lines = s->lines + i * p->block * DF_LANES;
          df_gather(lines, DF_LANES, &t, w, s->offset, s->source, begin, end);
          spots[i].source = lines;
          spots[i].shift = gathered;
        }
      }
      for (int64_t j = panel; j < last; j++) {
        const float *next = panel_weight(s, j + 1, begin, end);
        if (j + 1 == last && first + count < to)
          next = panel_weight(s, panel, begin, end);
        else if (j + 1 == last && end < p->k)
          next = panel_weight(s, panel, end, df_min(p->k, end + p->block));
        do_panel(s, spots, count, j, begin, end, next);
      }
    }
  }
}

/* at: image, group, split of the tiles, split of the panels. */
static void run_task(const void *context, const int64_t *at, float *scratch) {
  const plan *p = context;
  const df_direct *d = p->d;
  const df_conv *conv = &d->conv;
  const df_window *w = &conv->window;
  const int64_t group = at[1], plane = at[0] * conv->groups + group;
  task s = {.d = d, .p = p, .lanes = df_direct_lanes(conv), .lines = scratch};
  s.source = d->source + plane * conv->channels * w->in_size;
  s.out = d->out + plane * conv->filters * w->out_size;
  s.add = d->add ? d->add + (s.out - d->out) : NULL;
  s.prepacked = d->prepacked + group * group_floats(conv);
  s.bias = d->bias ? d->bias + group * conv->filters : NULL;
  df_tap_offsets(w, s.offset);
  int64_t tile, last_tile, panel, last_panel;
  df_task_range(at[2], p->tile_splits, p->tiles, 1, &tile, &last_tile);
  df_task_range(at[3], p->panel_splits, df_direct_panels(conv), 1, &panel, &last_panel);
  do_tiles(&s, tile, last_tile, panel, last_panel);
}

void DF_NAME(df_direct_run)(const df_call *call, const df_direct *direct) {
  const df_conv *conv = &direct->conv;
  plan p = make_plan(conv, call->threads);
  p.d = direct;
  df_tasks tasks = grid_of(conv, &p);
  tasks.run = run_task;
  tasks.workspace = call->workspace;
  DF_NAME(df_run_tasks)(call, &tasks);
}
