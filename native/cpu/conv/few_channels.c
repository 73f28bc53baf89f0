/* conv/few_channels.c: out[f][r][x] = relu(bias[f] + sum over c, a, b of weight[f][c][a][b] *
 * in[c][r * stride - pad + a * dilation][x * stride - pad + b * dilation]).
 *
 * For the few channels of an image a product of prepacked weights with lines of positions, k of
 * them = (channel, tap). A row of the input is split into its phases first, padded with zeros:
 *   phase[p][j] = in[j * stride + p]
 * so that the line of tap b is one phase from some element on: b * dilation - pad = shift * stride
 * + p. Copying it takes a load and a store for a vector of positions, where its products take a
 * multiply-add per filter. The lines of a strip of DF_TILE_COLUMNS positions stay in the first
 * cache while every panel of filters passes over them. */
#include "conv/few_channels.h"
#include "conv/common.h"
#include "conv/pointwise.h"
#include "gemm/tile.h"

enum {
  MOST_STEPS = 160,      /* of a position */
  MOST_STRIDE = 4,       /* phases of a row */
  MOST_FLOATS = 1 << 13, /* of phases, where a row needs no more: 32 KiB */
  MOST_PHASES = 1 << 20, /* floats of phases that a row may need */
  LEAST_STRIPS = 12,     /* below, too many lanes of the last strip are empty */
  GRAIN = 256 * 1024     /* multiply-adds of the smallest task worth a thread's while */
};

static int64_t steps_of(const df_conv *conv) { return conv->channels * conv->window.taps; }

/* ---- Sizes ---------------------------------------------------------------------------------- */

typedef struct form {
  int64_t k;
  int64_t left;   /* zeros before the first element of a phase */
  int64_t pitch;  /* floats of a phase */
  int64_t strips; /* of a row */
  int64_t rows;   /* of the output that are done at a time */
  int64_t inputs; /* rows of a channel that they read */
  int64_t row;    /* floats of the phases from what a row reads to what the next one reads */
} form;

static int64_t round_down(int64_t a, int64_t b) { return a >= 0 ? a / b : -df_divide_up(-a, b); }

/* Where the line of tap column b begins: |*phase| and the element of it. */
static int64_t shift_of(const df_window *w, int64_t b, int64_t *phase) {
  int64_t at = b * w->dilation[2] - w->pad[2], shift = round_down(at, w->stride[2]);
  *phase = at - shift * w->stride[2];
  return shift;
}

static form form_of(const df_conv *conv) {
  const df_window *w = &conv->window;
  int64_t phase, right = shift_of(w, w->kernel[2] - 1, &phase);
  form f = {.k = steps_of(conv), .left = df_max(0, -shift_of(w, 0, &phase))};
  int64_t reach = df_divide_up(w->out[2], DF_LANES) * DF_LANES + df_max(0, right);
  int64_t length = df_max(reach, df_divide_up(w->in[2], w->stride[2]));
  f.pitch = df_divide_up(f.left + length, DF_LANES) * DF_LANES;
  f.strips = df_divide_up(w->out[2], DF_TILE_COLUMNS);
  int64_t one = (w->kernel[1] - 1) * w->dilation[1] + 1; /* rows that a row reads */
  int64_t most = MOST_FLOATS / (conv->channels * w->stride[2] * f.pitch);
  f.rows = df_max(1, df_min(w->out[1], (most - one) / w->stride[1] + 1));
  f.inputs = (f.rows - 1) * w->stride[1] + one;
  f.row = w->stride[1] * w->stride[2] * f.pitch;
  return f;
}

/* All phases of the rows that are read at a time. */
static int64_t phase_floats(const df_conv *conv, const form *f) {
  return conv->channels * f->inputs * conv->window.stride[2] * f->pitch;
}

static int phases_fit(const df_conv *conv) {
  form f = form_of(conv);
  return f.pitch <= MOST_PHASES && f.inputs <= MOST_PHASES && phase_floats(conv, &f) <= MOST_PHASES;
}

int DF_NAME(df_few_channels_can)(const df_conv *conv) {
  const df_window *w = &conv->window;
  return w->in[0] == 1 && w->out[0] == 1 && w->kernel[0] == 1 && w->pad[0] == 0 &&
         w->stride[2] <= MOST_STRIDE && w->taps > 0 && conv->channels > 0 &&
         steps_of(conv) <= MOST_STEPS && w->out_size > 0 && phases_fit(conv);
}

/* Whether about as many rows are split as lines of taps are copied: where taps are far apart, and
 * their rows too many to be kept, each row of the output splits also those that lie between. */
static int splits_what_it_reads(const df_conv *conv) {
  const df_window *w = &conv->window;
  form f = form_of(conv);
  return f.inputs <= f.rows * df_max(w->stride[1], w->kernel[1]);
}

int DF_NAME(df_few_channels_fills)(const df_conv *conv) {
  return DF_NAME(df_few_channels_can)(conv) && !df_conv_is_plain(&conv->window) &&
         splits_what_it_reads(conv) && conv->filters > DF_LANES && conv->window.out[2] > DF_LANES &&
         conv->window.out_size >= LEAST_STRIPS * DF_TILE_COLUMNS;
}

/* Rows are split into phases where no element is skipped. conv/direct.c is faster then with vectors
 * of sixteen; with eight it finds out what it reads for few positions at a time. */
int DF_NAME(df_few_channels_takes)(const df_conv *conv) {
  const df_window *w = &conv->window;
  const int splits = DF_LANES == 8 && w->taps >= w->stride[1] * w->stride[2];
  return (w->stride[2] == 1 || splits) && DF_NAME(df_few_channels_fills)(conv);
}

int64_t DF_NAME(df_few_channels_floats)(const df_conv *conv) {
  form f = form_of(conv);
  return phase_floats(conv, &f) + f.k * DF_TILE_COLUMNS;
}

/* ---- Lines ---------------------------------------------------------------------------------- */

/* The phases of a row of the input, or of padding when it is null. */
static void split_row(float *to, const float *row, const df_window *w, const form *f) {
  int64_t stride = w->stride[2];
  memset(to, 0, (size_t)(stride * f->pitch) * sizeof(float));
  if (!row)
    return;
  to += f->left;
  int64_t j = 0;
  if (stride == 1) {
    memcpy(to, row, (size_t)w->in[2] * sizeof(float));
    return;
  }
  if (stride == 2)
    for (; (j + DF_LANES + 1) * 2 <= w->in[2]; j += DF_LANES) {
      vec_store(to + j, vec_load_steps(row + 2 * j, 2));
      vec_store(to + f->pitch + j, vec_load_steps(row + 2 * j + 1, 2));
    }
  for (int64_t i = j * stride; i < w->in[2]; i++)
    to[i % stride * f->pitch + i / stride] = row[i];
}

/* Phases of what |rows| rows of the output from |row| on read: [channel][input row][phase]. */
static void split_rows_of(float *to, const float *source, const df_conv *conv, const form *f,
                          int64_t row, int64_t rows) {
  const df_window *w = &conv->window;
  int64_t first = row * w->stride[1] - w->pad[1];
  int64_t count = (rows - 1) * w->stride[1] + (w->kernel[1] - 1) * w->dilation[1] + 1;
  for (int64_t c = 0; c < conv->channels; c++)
    for (int64_t i = 0; i < count; i++) {
      int64_t at = first + i;
      split_row(to + (c * f->inputs + i) * w->stride[2] * f->pitch,
                at >= 0 && at < w->in[1] ? source + c * w->in_size + at * w->in[2] : NULL, w, f);
    }
}

/* Positions of a strip, and the lanes that it takes. */
static int64_t columns_of(const df_window *w, int64_t strip) {
  return df_min(DF_TILE_COLUMNS, w->out[2] - strip * DF_TILE_COLUMNS);
}
static int64_t width_of(int64_t columns) { return columns > DF_LANES ? DF_TILE_COLUMNS : DF_LANES; }

/* Where the lines of the steps begin in the phases, for row 0 of those that are there. Returns the
 * number of steps. */
static int64_t find_lines(int32_t *offset, const df_conv *conv, const form *f) {
  const df_window *w = &conv->window;
  int64_t k = 0;
  for (int64_t c = 0; c < conv->channels; c++)
    for (int64_t a = 0; a < w->kernel[1]; a++)
      for (int64_t b = 0; b < w->kernel[2]; b++) {
        int64_t phase, shift = shift_of(w, b, &phase);
        int64_t input = c * f->inputs + a * w->dilation[1];
        offset[k++] = (int32_t)((input * w->stride[2] + phase) * f->pitch + f->left + shift);
      }
  return k;
}

/* lines[k][position] of |vectors| of positions. */
static void copy_lines(float *lines, const float *phases, const int32_t *offset, int64_t k,
                       int64_t vectors) {
  if (vectors == 1)
    for (int64_t p = 0; p < k; p++)
      vec_store(lines + p * DF_LANES, vec_load(phases + offset[p]));
  else
    for (int64_t p = 0; p < k; p++) {
      vec_store(lines + p * DF_TILE_COLUMNS, vec_load(phases + offset[p]));
      vec_store(lines + p * DF_TILE_COLUMNS + DF_LANES, vec_load(phases + offset[p] + DF_LANES));
    }
}

/* ---- Bands ---------------------------------------------------------------------------------- */

void DF_NAME(df_few_channels_band)(const df_direct *direct, int64_t unit, int64_t begin,
                                   int64_t end, const df_planes *to, float *scratch) {
  const df_conv *conv = &direct->conv;
  const df_window *w = &conv->window;
  form f = form_of(conv);
  int64_t group = unit % conv->groups, panels = df_divide_up(conv->filters, DF_TILE_ROWS);
  const float *source = direct->source + unit * conv->channels * w->in_size;
  const float *prepacked = direct->prepacked + group * panels * DF_TILE_ROWS * f.k;
  const float *bias = direct->bias ? direct->bias + group * conv->filters : NULL;
  float *lines = scratch + phase_floats(conv, &f);
  int32_t offset[MOST_STEPS];
  const int64_t k = find_lines(offset, conv, &f);
  for (int64_t row = begin; row < end; row++) {
    int64_t ahead = (row - begin) % f.rows;
    if (ahead == 0)
      split_rows_of(scratch, source, conv, &f, row, df_min(f.rows, end - row));
    for (int64_t strip = 0; strip < f.strips; strip++) {
      int64_t columns = columns_of(w, strip), vectors = width_of(columns) / DF_LANES;
      int64_t at = (row - begin) * to->row + strip * DF_TILE_COLUMNS;
      copy_lines(lines, scratch + ahead * f.row + strip * DF_TILE_COLUMNS, offset, k, vectors);
      for (int64_t panel = 0; panel < panels; panel++) {
        int64_t filter = conv->filters * panel / panels;
        int64_t filters = conv->filters * (panel + 1) / panels - filter;
        df_tile_epilogue epilogue = {.row_bias = bias ? bias + filter : NULL,
                                     .add = to->add ? to->add + at + filter * to->plane : NULL,
                                     .high = direct->high,
                                     .a_step = DF_TILE_ROWS};
        DF_NAME(df_tiles)
        [filters - 1][vectors - 1](k, prepacked + panel *k *DF_TILE_ROWS, lines,
                                   to->out + at + filter *to->plane, to->plane, columns, &epilogue);
      }
    }
  }
}

/* ---- Running -------------------------------------------------------------------------------- */

/* How many tasks share the rows of a plane. */
static int64_t row_splits(const df_conv *conv, int32_t threads) {
  int64_t units = conv->batch * conv->groups;
  int64_t work = df_times(units * conv->filters * conv->window.out_size, steps_of(conv));
  int64_t wanted = threads > 1 ? df_max(1, df_min(4 * threads, work / GRAIN)) : 1;
  return df_max(1, df_min(conv->window.out[1], df_divide_up(wanted, df_max(1, units))));
}

/* The tasks of |splits| per plane, but for what they do. */
static df_tasks grid_of(const df_conv *conv, int64_t splits) {
  return (df_tasks){.axes = 2,
                    .size = {conv->batch * conv->groups, splits},
                    .scratch = DF_NAME(df_few_channels_floats)(conv)};
}

int64_t DF_NAME(df_few_channels_workspace)(const df_conv *conv, int32_t threads) {
  const df_tasks tasks = grid_of(conv, row_splits(conv, threads));
  return df_tasks_floats(&tasks, threads) * (int64_t)sizeof(float);
}

typedef struct split_rows {
  const df_direct *d;
  int64_t splits;
} split_rows;

/* at: image and group, split of the rows. */
static void run_task(const void *context, const int64_t *at, float *scratch) {
  const split_rows *s = context;
  const df_direct *d = s->d;
  const df_window *w = &d->conv.window;
  int64_t begin, end;
  df_task_range(at[1], s->splits, w->out[1], 1, &begin, &end);
  int64_t offset = at[0] * d->conv.filters * w->out_size + begin * w->out[2];
  df_planes to = {.out = d->out + offset,
                  .add = d->add ? d->add + offset : NULL,
                  .plane = w->out_size,
                  .row = w->out[2]};
  DF_NAME(df_few_channels_band)(d, at[0], begin, end, &to, scratch);
}

void DF_NAME(df_few_channels_run)(const df_call *call, const df_direct *direct) {
  const df_conv *conv = &direct->conv;
  const split_rows s = {direct, row_splits(conv, call->threads)};
  df_tasks tasks = grid_of(conv, s.splits);
  tasks.run = run_task;
  tasks.context = &s;
  tasks.workspace = call->workspace;
  DF_NAME(df_run_tasks)(call, &tasks);
}
