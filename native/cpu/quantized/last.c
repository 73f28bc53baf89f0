/* quantized/last.c: see quantized/last.h.
 *
 * As many rows are packed at a time as stay in the second cache; panels of filters then pass over
 * them. */
#include "quantized/last.h"
#include "quantized/pack.h"

enum {
  GRAIN = 256 * 1024,   /* multiply-adds of the smallest task worth a thread's while */
  STAYING = 256 * 1024, /* bytes of rows and results that stay in the second cache */
  ONE_SET = 4096,       /* bytes from one line to the next of a set of the first cache */
  RUN = 64,             /* bytes that are copied at once */
  SHORT = 32,           /* the same of runs that are no longer, as those of three channels are */
  VECTORS = 3           /* the epilogue's arrays by filter */
};

typedef struct plan {
  df_conv conv;
  int64_t positions; /* of all images */
  int64_t k, steps, height;
  int64_t down, across;       /* tasks: splits of positions and of filters */
  int64_t rows, columns;      /* of a task */
  int64_t group;              /* rows that are packed and stay together */
  int64_t row;                /* bytes from one row to the next */
  int32_t as_it_lies;         /* rows are not packed */
  int64_t weights, scratches; /* offsets in the workspace behind the vectors */
  int64_t sums, scratch;      /* offset in a task's scratch, and its bytes */
} plan;

/* Bytes of one of the epilogue's arrays, or of the sums of all filters. */
static int64_t vector_bytes(const df_conv *conv) {
  const int64_t columns = df_byte_panels(conv->filters) * DF_BYTE_COLUMNS;
  return df_byte_sum_bytes(columns);
}

int64_t DF_NAME(df_byte_last_prepack_bytes)(const df_conv *conv) {
  const int64_t columns = df_byte_panels(conv->filters) * DF_BYTE_COLUMNS;
  const int64_t steps = df_byte_steps(conv->channels * conv->window.taps);
  return vector_bytes(conv) + columns * steps * DF_BYTE_STEP +
         df_byte_flag_bytes(df_byte_panels(conv->filters), steps);
}

static plan make_plan(const df_conv *conv, int32_t dtype, int32_t threads) {
  plan w = {.conv = *conv, .positions = conv->batch * conv->window.out_size};
  w.k = conv->channels * conv->window.taps;
  w.steps = df_byte_steps(w.k);
  w.height = df_byte_height(w.positions);
  w.as_it_lies = dtype == DF_UINT8 && df_conv_is_plain(&conv->window) && w.k % DF_BYTE_STEP == 0 &&
                 (w.positions == 1 || w.k % ONE_SET);
  w.row = w.as_it_lies ? w.k : df_byte_row(w.k);
  const int64_t panels = df_byte_panels(conv->filters), m = w.positions;
  const int64_t heights = df_divide_up(m, w.height);
  const int64_t work = df_times(df_times(m, conv->filters), w.k);
  const int64_t tasks = threads > 1 ? df_max(1, df_min(4 * threads, work / GRAIN)) : 1;
  if (conv->filters > m) { /* each reads its own weights, and copies all positions */
    w.across = df_min(panels, w.as_it_lies ? tasks : df_min(tasks, threads));
    w.down = df_min(heights, df_divide_up(tasks, w.across));
  } else {
    w.down = df_min(heights, tasks);
    w.across = df_min(panels, df_divide_up(tasks, w.down));
  }
  w.rows = df_divide_up(heights, w.down) * w.height;
  w.down = df_divide_up(m, w.rows);
  w.columns = df_divide_up(panels, w.across) * DF_BYTE_COLUMNS;
  w.across = df_divide_up(conv->filters, w.columns);
  w.group = df_max(1, df_min(w.rows / w.height, STAYING / ((w.row + conv->filters) * w.height))) *
            w.height;
  w.weights = VECTORS * vector_bytes(conv);
  w.scratches =
      w.weights + (conv->uses ? df_round_up(DF_NAME(df_byte_last_prepack_bytes)(conv), 64) : 0);
  w.sums = w.as_it_lies ? 0 : df_round_up(w.group * w.row + RUN, 64);
  w.scratch = w.sums + df_round_up(w.group * (int64_t)sizeof(int32_t), 64);
  return w;
}

int64_t DF_NAME(df_byte_last_workspace)(const df_conv *conv, int32_t dtype, int32_t threads) {
  const plan w = make_plan(conv, dtype, threads);
  return w.scratches + w.scratch * df_workers(threads, w.down * w.across);
}

/* ---- Weights: sums of all filters, then panels ------------------------------------------------
 */

void DF_NAME(df_byte_last_prepack)(const df_conv *conv, const uint8_t *weight, uint8_t sign,
                                   uint8_t *prepacked) {
  const int64_t taps = conv->window.taps, steps = df_byte_steps(conv->channels * taps);
  int32_t *sums = (int32_t *)(void *)prepacked;
  uint8_t *panels = prepacked + vector_bytes(conv);
  memset(prepacked, 0, (size_t)DF_NAME(df_byte_last_prepack_bytes)(conv));
  for (int64_t f = 0; f < conv->filters; f++) {
    const int64_t column = f % DF_BYTE_COLUMNS, first = f - column;
    const int64_t line = df_byte_line(df_min(DF_BYTE_COLUMNS, conv->filters - first));
    uint8_t *to = panels + first * steps * DF_BYTE_STEP + column * DF_BYTE_STEP;
    for (int64_t channel = 0; channel < conv->channels; channel++)
      for (int64_t tap = 0; tap < taps; tap++) {
        const int64_t p = tap * conv->channels + channel;
        const uint8_t value = *weight++ ^ sign;
        to[p / DF_BYTE_STEP * line + p % DF_BYTE_STEP] = value;
        sums[f] += (int8_t)value;
      }
  }
  const int64_t count = df_byte_panels(conv->filters);
  df_byte_note_panels(sums, vector_bytes(conv), panels, count, steps, DF_BYTE_LINE,
                      df_byte_line(conv->filters - (count - 1) * DF_BYTE_COLUMNS));
}

/* ---- Rows -------------------------------------------------------------------------------------
 */

typedef struct convolution {
  plan w;
  const df_byte_operands *o;
  df_byte_epilogue epilogue; /* of all filters */
  const uint8_t *packed;     /* weights */
  const uint8_t *end;        /* of x */
  uint8_t *workspace;
  uint8_t sign; /* the bit of x to invert */
  uint8_t zero; /* what padding is, unsigned */
} convolution;

typedef uint8_t short_run __attribute__((vector_size(SHORT)));
typedef uint8_t run_of_bytes __attribute__((vector_size(RUN)));

/* Copies |count| bytes; up to RUN - 1 behind them are overwritten. */
static inline uint8_t *copy_run(const convolution *c, uint8_t *to, const uint8_t *from,
                                int64_t count) {
  const run_of_bytes sign = c->sign - (run_of_bytes){0};
  uint8_t *end = to + count;
  if (count <= SHORT && c->end - from >= SHORT) {
    short_run bytes;
    memcpy(&bytes, from, SHORT);
    bytes ^= c->sign;
    memcpy(to, &bytes, SHORT);
    return end;
  }
  for (; to < end; to += RUN, from += RUN) {
    run_of_bytes bytes = {0};
    if (c->end - from >= RUN)
      memcpy(&bytes, from, RUN);
    else
      memcpy(&bytes, from, (size_t)df_min(c->end - from, end - to));
    bytes ^= sign;
    memcpy(to, &bytes, RUN);
  }
  return end;
}

static inline uint8_t *fill_run(const convolution *c, uint8_t *to, int64_t count) {
  memset(to, c->zero, (size_t)count);
  return to + count;
}

/* The row of taps at position |o| of the image at |x|. */
static uint8_t *pack_row(const convolution *c, uint8_t *to, const uint8_t *x,
                         const int64_t o[DF_AXES]) {
  const df_window *w = &c->w.conv.window;
  const int64_t channels = c->w.conv.channels, run = w->kernel[2] * channels;
  int64_t start[DF_AXES], begin, end;
  for (int axis = 0; axis < DF_AXES; axis++)
    start[axis] = o[axis] * w->stride[axis] - w->pad[axis];
  df_window_taps(w, 2, o[2], &begin, &end);
  for (int64_t a = 0; a < w->kernel[0]; a++)
    for (int64_t b = 0; b < w->kernel[1]; b++) {
      const int64_t slice = start[0] + a * w->dilation[0], row = start[1] + b * w->dilation[1];
      if (slice < 0 || slice >= w->in[0] || row < 0 || row >= w->in[1] || begin >= end) {
        to = fill_run(c, to, run);
        continue;
      }
      const uint8_t *from = x + ((slice * w->in[1] + row) * w->in[2] + start[2]) * channels;
      if (begin > 0)
        to = fill_run(c, to, begin * channels);
      if (w->dilation[2] == 1)
        to = copy_run(c, to, from + begin * channels, (end - begin) * channels);
      else
        for (int64_t tap = begin; tap < end; tap++)
          to = copy_run(c, to, from + tap * w->dilation[2] * channels, channels);
      if (end < w->kernel[2])
        to = fill_run(c, to, (w->kernel[2] - end) * channels);
    }
  return to;
}

/* Positions [first, first + count) of all images, in ascending order since each row overwrites what
 * is behind it. */
static void pack_rows(const convolution *c, uint8_t *to, int64_t first, int64_t count) {
  const df_window *w = &c->w.conv.window;
  const int64_t image = w->in_size * c->w.conv.channels,
                padding = c->w.steps * DF_BYTE_STEP - c->w.k;
  const uint8_t *x = c->o->left->data;
  x += first / w->out_size * image;
  int64_t at = first % w->out_size, o[DF_AXES];
  o[2] = at % w->out[2];
  o[1] = at / w->out[2] % w->out[1];
  o[0] = at / (w->out[2] * w->out[1]);
  for (int64_t i = 0; i < count; i++, to += c->w.row) {
    memset(pack_row(c, to, x, o), 0, (size_t)padding);
    if (++o[2] < w->out[2])
      continue;
    o[2] = 0;
    if (++o[1] < w->out[1])
      continue;
    o[1] = 0;
    if (++o[0] < w->out[0])
      continue;
    o[0] = 0;
    x += image;
  }
}

/* ---- Tasks ------------------------------------------------------------------------------------
 */

static void run_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count;
  const convolution *c = context;
  const plan *w = &c->w;
  const int64_t filters = w->conv.filters;
  const int64_t first = index / w->across * w->rows, j = index % w->across * w->columns;
  const int64_t end = df_min(w->positions, first + w->rows);
  uint8_t *scratch = c->workspace + w->scratches + worker * w->scratch;
  int32_t *sums = (int32_t *)(void *)(scratch + w->sums);
  const uint8_t *x = c->o->left->data;
  df_byte_product product = {.n = df_min(w->columns, filters - j),
                             .crowded = df_byte_noted_panels(c->packed, vector_bytes(&w->conv),
                                                             df_byte_panels(filters), w->steps,
                                                             DF_BYTE_LINE, j / DF_BYTE_COLUMNS),
                             .steps = w->steps,
                             .height = w->height,
                             .b = c->packed + vector_bytes(&w->conv) + j * w->steps * DF_BYTE_STEP,
                             .a_panel = w->height * w->row,
                             .a_row = w->row,
                             .a_step = DF_BYTE_STEP,
                             .b_panel = w->steps * DF_BYTE_LINE,
                             .epilogue = c->epilogue};
  df_byte_epilogue *e = &product.epilogue;
  e->column_add += j;
  e->column_scale += j;
  if (e->column_zero) {
    e->column_zero += j;
    e->row_sum = sums;
  }
  for (int64_t i = first; i < end; i += w->group) {
    product.m = df_min(w->group, end - i);
    product.a = w->as_it_lies ? x + i * w->row : scratch;
    if (!w->as_it_lies)
      pack_rows(c, scratch, i, product.m);
    if (e->column_zero)
      DF_NAME(df_byte_row_sums)(sums, product.a, product.m, w->steps, w->row, 1);
    e->out = (uint8_t *)c->epilogue.out + i * filters + j;
    DF_NAME(df_byte_multiply)(&product);
  }
}

void DF_NAME(df_byte_last_run)(const df_call *call, const df_conv *conv, const uint8_t *prepacked,
                               const df_byte_operands *operands, const df_byte_epilogue *epilogue) {
  const df_tensor *x = operands->left, *weight = operands->right;
  convolution c = {.w = make_plan(conv, x->dtype, call->threads),
                   .o = operands,
                   .epilogue = *epilogue,
                   .packed = prepacked,
                   .end = (const uint8_t *)x->data + df_elements(x),
                   .workspace = call->workspace,
                   .sign = df_byte_sign(x->dtype, 1)};
  c.zero = (uint8_t)df_byte_zero(operands->left_zero, 0, x->dtype, 1);
  c.epilogue.out_row = conv->filters;
  if (!prepacked) {
    uint8_t *packed = c.workspace + c.w.weights;
    DF_NAME(df_byte_last_prepack)(conv, weight->data, df_byte_sign(weight->dtype, 0), packed);
    c.packed = packed;
  }
  df_byte_fill_columns(operands, &c.epilogue, c.workspace, vector_bytes(conv), c.packed,
                       conv->filters, c.w.k);
  df_parallel(call, run_task, &c, c.w.down * c.w.across);
}
