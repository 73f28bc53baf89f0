/* conv/padded.c: convolution that reads a padded copy of some rows of the source.
 *
 *   out[f][r][x] = relu(bias[f] + sum over k = (channel, a, b) of weight[f][k] *
 *                       copy[channel][r * stride + a * dilation][x * stride + b * dilation])
 *
 * Lanes run over filters, and a tile reads single floats of the copy: neighbours of a row of the
 * output lie a stride apart in it, whatever tap is read, so that nothing is gathered per tap or
 * split by phases. That takes one vector of filters, which a small group has, and a copy costs a
 * load and a store per element of the source, not per tap. Weights are packed as in conv/direct.c,
 * in one block of k. The rows of a band stay in the cache while every panel of filters passes over
 * them. */
#include "conv/padded.h"
#include "conv/common.h"
#include "conv/padded_tile.h"

enum {
  MOST_FLOATS = 1
      << 16, /* of a band's copy, where a row needs no more: 256 KiB stay in the second cache */
  MOST_COPY = 1 << 20, /* floats of a copy that a row may need */
  LEAST_STEPS = DF_LANES == 16 ? 24
  : DF_LANES == 8              ? 64
                               : 128,
  LEAST_IN_LONG_ROWS = 128, /* of eight lanes, where others read whole vectors of a row */
  GRAIN = 256 * 1024        /* multiply-adds of the smallest task worth a thread's while */
};

static int64_t steps_of(const df_conv *conv) { return conv->channels * conv->window.taps; }

/* ---- Sizes ---------------------------------------------------------------------------------- */

typedef struct form {
  int64_t lines;  /* rows of the output in a tile: two if they are short */
  int64_t tiles;  /* of a row, or of two */
  int64_t rows;   /* of the output that are done at a time */
  int64_t inputs; /* rows of the source that they read */
  int64_t pitch;  /* floats of such a row */
} form;

static int64_t reach(const df_window *w, int axis, int64_t count) {
  return (count - 1) * w->stride[axis] + (w->kernel[axis] - 1) * w->dilation[axis] + 1;
}

/* Of a task that has |rows| rows of the output. */
static form form_of(const df_conv *conv, int64_t rows) {
  const df_window *w = &conv->window;
  form f = {.lines = w->out[2] * DF_PADDED_LINES <= DF_DIRECT_ROWS ? DF_PADDED_LINES : 1,
            .tiles = df_divide_up(w->out[2], DF_DIRECT_ROWS),
            .pitch = reach(w, 2, w->out[2])};
  int64_t most = MOST_FLOATS / (conv->channels * f.pitch) - reach(w, 1, 1);
  most = df_max(f.lines, df_min(rows, most > 0 ? most / w->stride[1] + 1 : 1));
  f.rows = df_divide_up(rows, df_divide_up(rows, most));
  f.rows = df_divide_up(f.rows, f.lines) * f.lines;
  f.inputs = reach(w, 1, f.rows);
  return f;
}

static int64_t copy_floats(const df_conv *conv, const form *f) {
  return conv->channels * f->inputs * f->pitch;
}

int DF_NAME(df_padded_can)(const df_conv *conv) {
  const df_window *w = &conv->window;
  if (w->in[0] != 1 || w->out[0] != 1 || w->kernel[0] != 1 || w->pad[0] != 0 || w->out_size <= 0 ||
      w->stride[2] > DF_PADDED_STRIDE || steps_of(conv) <= 0 || steps_of(conv) > DF_DIRECT_STEPS)
    return 0;
  form f = form_of(conv, w->out[1]);
  return f.pitch <= MOST_COPY && f.inputs <= MOST_COPY && copy_floats(conv, &f) <= MOST_COPY;
}

/* Whether the lanes are filled, and the sums of a tile are of so many products that transposing
 * them takes little. What is read once is gathered as fast. */
int DF_NAME(df_padded_takes)(const df_conv *conv) {
  const df_window *w = &conv->window;
  const int overlap = DF_LANES != 8 || w->taps > w->stride[1] * w->stride[2];
  const int others_read_rows = DF_LANES == 8 && w->stride[2] == 1 && w->out[2] > 2 * DF_LANES;
  return DF_NAME(df_padded_can)(conv) && w->taps > 1 && overlap &&
         steps_of(conv) >= (others_read_rows ? LEAST_IN_LONG_ROWS : LEAST_STEPS) &&
         4 * conv->filters >= 3 * df_direct_lanes(conv);
}

/* ---- One task ------------------------------------------------------------------------------- */

/* What |rows| rows of the output from |row| on read: [channel][row of the source][column]. The
 * columns of the padding are zeros already, and its rows where |fresh|. */
static void copy_rows(float *to, const float *source, const df_conv *conv, const form *f,
                      int64_t row, int64_t rows, int fresh) {
  const df_window *w = &conv->window;
  int64_t first = row * w->stride[1] - w->pad[1], count = reach(w, 1, rows);
  int64_t begin = df_min(count, df_max(0, -first));
  int64_t end = df_max(begin, df_min(count, w->in[1] - first));
  int64_t left = df_min(f->pitch, w->pad[2]), columns = df_min(f->pitch - left, w->in[2]);
  for (int64_t c = 0; c < conv->channels; c++, to += f->inputs * f->pitch) {
    const float *from = source + c * w->in_size + (first + begin) * w->in[2];
    float *out = to + begin * f->pitch + left;
    for (int64_t i = begin; i < end; i++, from += w->in[2], out += f->pitch) {
      int64_t x = 0;
      for (; x + DF_LANES <= columns; x += DF_LANES)
        vec_store(out + x, vec_load(from + x));
      vec_store_partial(out + x, vec_load_partial(from + x, columns - x), columns - x);
    }
    if (!fresh) {
      memset(to, 0, (size_t)(begin * f->pitch) * sizeof(float));
      memset(to + end * f->pitch, 0, (size_t)((count - end) * f->pitch) * sizeof(float));
    }
  }
}

static void find_shifts(int32_t *shift, const df_conv *conv, const form *f) {
  const df_window *w = &conv->window;
  for (int64_t c = 0; c < conv->channels; c++)
    for (int64_t a = 0; a < w->kernel[1]; a++)
      for (int64_t b = 0; b < w->kernel[2]; b++)
        *shift++ = (int32_t)((c * f->inputs + a * w->dilation[1]) * f->pitch + b * w->dilation[2]);
}

typedef struct plan {
  const df_direct *d;
  int64_t splits; /* tasks that share the rows of a plane */
  form form;
} plan;

/* A panel of filters for |rows| rows of the output from |row| on, of which |copy| is. */
static void do_panel(const plan *p, const float *copy, const int32_t *shift, int64_t unit,
                     int64_t row, int64_t rows, int64_t panel) {
  const df_direct *d = p->d;
  const df_conv *conv = &d->conv;
  const df_window *w = &conv->window;
  const form *f = &p->form;
  int64_t k = steps_of(conv), group = unit % conv->groups, filter = panel * DF_DIRECT_FILTERS;
  int64_t width = df_direct_width(conv, panel), filters = df_min(width, conv->filters - filter);
  const float *weight = d->prepacked + (group * df_direct_lanes(conv) + filter) * k;
  const float *bias = d->bias ? d->bias + group * conv->filters + filter : NULL;
  int64_t plane = (unit * conv->filters + filter) * w->out_size, down = w->stride[1] * f->pitch;
  float sums[DF_DIRECT_ROWS * DF_DIRECT_FILTERS];
  for (int64_t line = 0, lines; line < rows; line += lines) {
    lines = df_min(f->lines, rows - line);
    for (int64_t tile = 0; tile < f->tiles; tile++) {
      int64_t x = w->out[2] * tile / f->tiles, end = w->out[2] * (tile + 1) / f->tiles;
      DF_NAME(df_padded_tile_of)
      (w->stride[2], width / DF_LANES, lines,
       end - x)(k, weight, copy + line * down + x * w->stride[2], shift, down, sums);
      int64_t to = plane + (row + line) * w->out[2] + x;
      df_direct_send(d->out + to, d->add ? d->add + to : NULL, w->out_size, sums, lines * (end - x),
                     width / DF_LANES, filters, bias, d->high);
    }
  }
}

/* at: image and group, split of the rows. */
static void run_task(const void *context, const int64_t *at, float *scratch) {
  const plan *p = context;
  const df_conv *conv = &p->d->conv;
  const df_window *w = &conv->window;
  int32_t shift[DF_DIRECT_STEPS];
  int64_t begin, end;
  df_task_range(at[1], p->splits, w->out[1], p->form.lines, &begin, &end);
  find_shifts(shift, conv, &p->form);
  memset(scratch, 0, (size_t)copy_floats(conv, &p->form) * sizeof(float));
  const float *source = p->d->source + at[0] * conv->channels * w->in_size;
  for (int64_t row = begin, rows; row < end; row += rows) {
    rows = df_min(p->form.rows, end - row);
    copy_rows(scratch, source, conv, &p->form, row, rows, row == begin);
    for (int64_t panel = 0; panel < df_direct_panels(conv); panel++)
      do_panel(p, scratch, shift, at[0], row, rows, panel);
  }
}

/* ---- Running -------------------------------------------------------------------------------- */

static plan make_plan(const df_conv *conv, int32_t threads) {
  int64_t units = conv->batch * conv->groups, rows = conv->window.out[1];
  int64_t work = df_times(units * conv->filters * conv->window.out_size, steps_of(conv));
  int64_t wanted = threads > 1 ? df_max(1, df_min(4 * (int64_t)threads, work / GRAIN)) : 1;
  plan p = {.splits = df_max(1, df_min(rows, df_divide_up(wanted, df_max(1, units))))};
  p.form = form_of(conv, df_divide_up(rows, p.splits));
  return p;
}

/* The tasks of a plan, but for what they do. */
static df_tasks grid_of(const df_conv *conv, const plan *p) {
  return (df_tasks){.context = p,
                    .axes = 2,
                    .size = {conv->batch * conv->groups, p->splits},
                    .scratch = copy_floats(conv, &p->form)};
}

int64_t DF_NAME(df_padded_workspace)(const df_conv *conv, int32_t threads) {
  const plan p = make_plan(conv, threads);
  const df_tasks tasks = grid_of(conv, &p);
  return df_tasks_floats(&tasks, threads) * (int64_t)sizeof(float);
}

void DF_NAME(df_padded_run)(const df_call *call, const df_direct *direct) {
  const df_conv *conv = &direct->conv;
  plan p = make_plan(conv, call->threads);
  p.d = direct;
  df_tasks tasks = grid_of(conv, &p);
  tasks.run = run_task;
  tasks.workspace = call->workspace;
  DF_NAME(df_run_tasks)(call, &tasks);
}
