/* conv/dot.c: dw[f, (c, t)] = the dot product of a plane of dy with a shifted plane of x.
 *
 * Lanes run along positions, so that they are full with few filters too. x is split by phases
 * (conv/phase_layout.h); dy is copied with rows of the same length and zeros in the gap. A tile of
 * dot products stays in registers over all positions of some images. Images are split by
 * sizes and threads; each split sums into a copy of its own, and the copies are added in their
 * order. */
#include "conv/dot.h"
#include "conv/common.h"
#include "conv/phase_layout.h"
#include "conv/tile.h"

enum {
  PHASE_FLOATS = 1 << 17, /* 512 KiB of both sources stay in the second cache */
  GRAIN = 256 * 1024      /* multiply-adds of the smallest task worth a thread's while */
};

typedef struct plan {
  df_conv conv;
  df_phase_layout down, across;
  int64_t span;        /* floats of a row of a phase */
  int64_t depth;       /* slices of dy */
  int64_t k;           /* dw of one filter: channels * taps */
  int64_t band, bands; /* rows of dy at a time */
  int64_t plane;       /* floats of the phases of a plane of x */
  int64_t line;        /* floats of a band of dy, whole vectors */
  int64_t images;      /* copied at a time */
  int64_t filters;     /* of a task */
  int64_t filter_splits;
  int64_t steps;        /* images of a split */
  int64_t image_splits; /* copies of dw when more than one */
  int64_t scratch;      /* floats of a task's workspace */
} plan;

/* Units of a split when |total| is split |count| times, all about equal. */
static int64_t split_of(int64_t total, int64_t count) {
  return df_divide_up(total, df_max(1, df_min(total, count)));
}

static int64_t weight_floats(const plan *p) { return p->conv.groups * p->conv.filters * p->k; }

/* Floats of the phases of x for |rows| rows of dy of one image. */
static int64_t phase_floats(const plan *p, int64_t rows) {
  return p->conv.channels * p->conv.window.kernel[0] * p->down.phases * p->across.phases *
         (rows + p->down.reach) * p->span;
}

static plan make_plan(const df_conv *conv, int32_t threads) {
  const df_window *w = &conv->window;
  plan p = {.conv = *conv,
            .down = df_phase_layout_make(w, 1, 0),
            .across = df_phase_layout_make(w, 2, 0),
            .depth = w->out[0],
            .k = conv->channels * w->taps};
  p.span = p.across.grid + p.across.reach;
  int64_t work = df_times(weight_floats(&p), conv->batch * w->out_size);
  int64_t wanted = threads > 1 ? df_max(1, df_min(2 * (int64_t)threads, work / GRAIN)) : 1;

  /* Tasks: groups; then images, when copies of dw are small beside the work; then filters. */
  int64_t missing = df_divide_up(wanted, conv->groups);
  int64_t image_splits = 1;
  if (df_times(weight_floats(&p), missing * 16) <=
      conv->batch * w->out_size * (conv->filters + conv->channels))
    image_splits = df_max(1, df_min(missing, conv->batch));
  p.steps = split_of(conv->batch, image_splits);
  p.image_splits = df_max(1, df_divide_up(conv->batch, df_max(1, p.steps)));
  missing = df_divide_up(missing, p.image_splits);
  p.filters = split_of(conv->filters, missing);
  p.filters = df_min(conv->filters, df_round_up(p.filters, DF_DOT_ROWS));
  p.filter_splits = df_divide_up(conv->filters, p.filters);

  int64_t per_row = phase_floats(&p, 1) - phase_floats(&p, 0) + p.filters * p.span;
  int64_t most = (PHASE_FLOATS - phase_floats(&p, 0)) / df_max(1, per_row);
  p.band = split_of(p.down.grid, df_divide_up(p.down.grid, df_max(1, most)));
  p.bands = df_divide_up(p.down.grid, df_max(1, p.band));
  p.plane = p.down.phases * p.across.phases * (p.band + p.down.reach) * p.span;
  p.line = df_round_up(p.band * p.span, DF_LANES);
  int64_t image = phase_floats(&p, p.band) + p.filters * p.line;
  p.images = df_max(1, p.bands > 1 ? 1 : df_min(p.steps, PHASE_FLOATS / df_max(1, image)));
  p.images = df_max(1, split_of(p.steps, df_divide_up(p.steps, p.images)));
  p.scratch = df_round_up(p.k, 16) + p.images * image + p.span + DF_LANES;
  p.scratch = df_round_up(p.scratch, 16);
  return p;
}

/* ---- One task ------------------------------------------------------------------------------- */

typedef struct gradient {
  plan p;
  float *dw;
  float *copies; /* of dw, one per split of the images but the first */
  const float *x, *dy;
} gradient;

typedef struct task {
  const gradient *gradient;
  int64_t group, filter, filters;
  int64_t image, images, z, first, rows; /* what is copied */
  int32_t *shift;                        /* per dw of a filter */
  float *x;                              /* [image][channel][tap of depth][plane] */
  float *dy;                             /* [image][filter][line] */
} task;

static void fill_zero(float *out, int64_t count) { memset(out, 0, (size_t)count * sizeof(float)); }

/* Planes of x, zeros for slices in the padding, and a zero slack that the last vectors read. */
static void copy_phases(const task *s) {
  const plan *p = &s->gradient->p;
  const df_window *w = &p->conv.window;
  int64_t plane = w->in[1] * w->in[2];
  float *to = s->x;
  for (int64_t image = 0; image < s->images; image++)
    for (int64_t channel = 0; channel < p->conv.channels; channel++) {
      int64_t at = (s->image + image) * p->conv.groups + s->group;
      const float *from = s->gradient->x + (at * p->conv.channels + channel) * w->in[0] * plane;
      for (int64_t tap = 0; tap < w->kernel[0]; tap++, to += p->plane) {
        int64_t slice = df_slice(w, 0, s->z, tap);
        int64_t used = p->down.phases * p->across.phases * (s->rows + p->down.reach) * p->span;
        if (slice < 0)
          fill_zero(to, used);
        else
          DF_NAME(df_phase_copy)(to, from + slice * plane, &p->down, &p->across, s->first,
                                 s->rows + p->down.reach);
        fill_zero(to + used, p->plane - used);
      }
    }
  fill_zero(to, p->span + DF_LANES);
}

/* |count| floats, and zeros up to |span|: by vectors, since rows are short and many. */
static void copy_row(float *to, int64_t span, const float *from, int64_t count) {
  int64_t i = 0;
  for (; i + DF_LANES <= count; i += DF_LANES)
    vec_store(to + i, vec_load(from + i));
  if (i < count) {
    df_vec rest = vec_load_partial(from + i, count - i);
    vec_store_partial(to + i, rest, df_min(DF_LANES, span - i));
    i += DF_LANES;
  }
  for (; i < span; i += DF_LANES)
    vec_store_partial(to + i, vec_zero(), df_min(DF_LANES, span - i));
}

static void copy_dy(const task *s) {
  const plan *p = &s->gradient->p;
  const df_window *w = &p->conv.window;
  int64_t width = w->out[2];
  float *to = s->dy;
  for (int64_t image = 0; image < s->images; image++)
    for (int64_t filter = s->filter; filter < s->filter + s->filters; filter++, to += p->line) {
      int64_t at = ((s->image + image) * p->conv.groups + s->group) * p->conv.filters + filter;
      const float *from =
          s->gradient->dy + ((at * w->out[0] + s->z) * w->out[1] + s->first) * width;
      for (int64_t row = 0; row < s->rows; row++)
        copy_row(to + row * p->span, p->span, from + row * width, width);
      fill_zero(to + s->rows * p->span, p->line - s->rows * p->span);
    }
}

/* Where every dw of a filter reads x. */
static void find_shifts(const task *s) {
  const plan *p = &s->gradient->p;
  const df_window *w = &p->conv.window;
  int64_t rows = s->rows + p->down.reach, at = 0;
  for (int64_t plane = 0; plane < p->conv.channels * w->kernel[0]; plane++)
    for (int64_t j = 0; j < w->kernel[1]; j++)
      for (int64_t k = 0; k < w->kernel[2]; k++) {
        int64_t down_phase, down_shift, across_phase, across_shift;
        df_phase_layout_tap(&p->down, 0, j, &down_phase, &down_shift);
        df_phase_layout_tap(&p->across, 0, k, &across_phase, &across_shift);
        int64_t row = (down_phase * p->across.phases + across_phase) * rows + down_shift;
        s->shift[at++] = (int32_t)(plane * p->plane + row * p->span + across_shift);
      }
}

/* Adds to dw what the copied images give. */
static void add_dots(const task *s, float *dw) {
  const plan *p = &s->gradient->p;
  int64_t x_image = p->conv.channels * p->conv.window.kernel[0] * p->plane;
  for (int64_t filter = 0; filter < s->filters; filter += DF_DOT_ROWS)
    for (int64_t k = 0; k < p->k; k += DF_DOT_COLUMNS) {
      df_dot dot = {.left = s->dy + filter * p->line,
                    .right = s->x,
                    .shift = s->shift + k,
                    .left_pitch = p->line,
                    .left_image = s->filters * p->line,
                    .right_image = x_image,
                    .images = s->images,
                    .count = df_round_up(s->rows * p->span, DF_LANES)};
      int64_t rows = df_min(DF_DOT_ROWS, s->filters - filter);
      int64_t columns = df_min(DF_DOT_COLUMNS, p->k - k);
      DF_NAME(df_dot_tiles)[rows - 1][columns - 1](&dot, dw + filter * p->k + k, p->k);
    }
}

/* at: split of the images, group, split of the filters. */
static void run_task(const void *context, const int64_t *at, float *scratch) {
  const gradient *g = context;
  const plan *p = &g->p;
  task s = {.gradient = g, .group = at[1], .filter = at[2] * p->filters};
  s.filters = df_min(p->filters, p->conv.filters - s.filter);
  int64_t end = df_min(p->conv.batch, (at[0] + 1) * p->steps);
  s.shift = (int32_t *)scratch;
  s.dy = (float *)s.shift + df_round_up(p->k, 16);
  s.x = s.dy + p->images * p->filters * p->line;
  float *dw = (at[0] ? g->copies + (at[0] - 1) * weight_floats(p) : g->dw) +
              (s.group * p->conv.filters + s.filter) * p->k;
  fill_zero(dw, s.filters * p->k);
  for (s.image = at[0] * p->steps; s.image < end; s.image += s.images) {
    s.images = df_min(p->images, end - s.image);
    for (s.z = 0; s.z < p->depth; s.z++)
      for (s.first = 0; s.first < p->down.grid; s.first += p->band) {
        s.rows = df_min(p->band, p->down.grid - s.first);
        find_shifts(&s);
        copy_phases(&s);
        copy_dy(&s);
        add_dots(&s, dw);
      }
  }
}

/* ---- All tasks ------------------------------------------------------------------------------ */

static int64_t copies_floats(const plan *p) {
  return df_round_up((p->image_splits - 1) * weight_floats(p), 16);
}

/* The tasks of a plan, but for what they do. */
static df_tasks grid_of(const plan *p) {
  return (df_tasks){.axes = 3,
                    .size = {p->image_splits, p->conv.groups, p->filter_splits},
                    .scratch = p->scratch};
}

int64_t DF_NAME(df_dot_floats)(const df_conv *conv, int32_t threads) {
  const plan p = make_plan(conv, threads);
  const df_tasks tasks = grid_of(&p);
  return copies_floats(&p) + df_tasks_floats(&tasks, threads);
}

void DF_NAME(df_dot_run)(const df_call *call, const df_conv *conv, float *dw, const float *x,
                         const float *dy) {
  gradient g = {
      .p = make_plan(conv, call->threads), .dw = dw, .copies = call->workspace, .x = x, .dy = dy};
  const plan *p = &g.p;
  df_tasks tasks = grid_of(p);
  tasks.run = run_task;
  tasks.context = &g;
  tasks.workspace = g.copies + copies_floats(p);
  DF_NAME(df_run_tasks)(call, &tasks);
  DF_NAME(df_add_copies)(call, dw, g.copies, p->image_splits - 1, weight_floats(p));
}
