/* float64/conv.c: the convolution of float64, and its gradients, as products of matrices of which
 * one is made from the image in blocks.
 *
 *   conv              y[f, o]      = bias[f] + sum over c, t of w[f, c, t] x[c, o stride - pad + t
 * dilation] conv_grad_input   dx[c, i]     = sum over f, t of w[f, c, t] dy[f, o], o stride = i +
 * pad - t dilation conv_grad_weight  dw[f, c, t]  = sum over images, o of dy[f, o] x[c, o stride -
 * pad + t dilation]
 *
 * for each image and group; shapes as in conv/conv.c. 2 N G F C out taps operations each. */
#include "conv/shape.h"
#include "float64/product.h"

enum { GRAIN = 128 * 1024 /* multiply-adds of the smallest task worth a thread's while */ };

/* Which element a position of one side reads of the other, along each axis: (position * times +
 * plus) / by, and none where that leaves a rest or lies outside. */
typedef struct reading {
  int64_t from[DF_AXES], to[DF_AXES]; /* sizes of the positions, and of what they read */
  int64_t times[DF_AXES], plus[DF_AXES], by[DF_AXES];
} reading;

/* Tap |tap| of each position of y in the image. */
static reading reading_image(const df_window *w, int64_t tap) {
  reading r;
  for (int axis = DF_AXES - 1; axis >= 0; axis--) {
    r.from[axis] = w->out[axis];
    r.to[axis] = w->in[axis];
    r.times[axis] = w->stride[axis];
    r.plus[axis] = tap % w->kernel[axis] * w->dilation[axis] - w->pad[axis];
    r.by[axis] = 1;
    tap /= w->kernel[axis];
  }
  return r;
}

/* The position of y that reads a position of the image by tap |tap|. */
static reading reading_result(const df_window *w, int64_t tap) {
  reading r;
  for (int axis = DF_AXES - 1; axis >= 0; axis--) {
    r.from[axis] = w->in[axis];
    r.to[axis] = w->out[axis];
    r.times[axis] = 1;
    r.plus[axis] = w->pad[axis] - tap % w->kernel[axis] * w->dilation[axis];
    r.by[axis] = w->stride[axis];
    tap /= w->kernel[axis];
  }
  return r;
}

/* The element along an axis, or -1. */
static int64_t read_at(const reading *r, int axis, int64_t position) {
  const int64_t at = position * r->times[axis] + r->plus[axis];
  if (at < 0 || (r->by[axis] > 1 && at % r->by[axis]))
    return -1;
  const int64_t found = r->by[axis] > 1 ? at / r->by[axis] : at;
  return found < r->to[axis] ? found : -1;
}

/* What positions [begin, end) read of |plane|, 0 for none. */
static void read_plane(const reading *r, const double *plane, int64_t begin, int64_t end,
                       double *row) {
  for (int64_t at = begin; at < end;) {
    const int64_t last = at % r->from[2];
    const int64_t count = df_min(r->from[2] - last, end - at);
    const int64_t first = read_at(r, 0, at / r->from[2] / r->from[1]);
    const int64_t middle = read_at(r, 1, at / r->from[2] % r->from[1]);
    const double *line = plane + (first * r->to[1] + middle) * r->to[2];
    if (first < 0 || middle < 0) {
      memset(row, 0, (size_t)count * sizeof *row);
    } else if (r->times[2] == 1 && r->by[2] == 1) {
      const int64_t start = last + r->plus[2];
      const int64_t low = df_min(count, df_max(0, -start));
      const int64_t high = df_max(low, df_min(count, r->to[2] - start));
      memset(row, 0, (size_t)low * sizeof *row);
      if (high > low)
        memcpy(row + low, line + start + low, (size_t)(high - low) * sizeof *row);
      memset(row + high, 0, (size_t)(count - high) * sizeof *row);
    } else {
      for (int64_t i = 0; i < count; i++) {
        const int64_t found = read_at(r, 2, last + i);
        row[i] = found < 0 ? 0.0 : line[found];
      }
    }
    row += count;
    at += count;
  }
}

/* ---- Products ------------------------------------------------------------------------------- */

/* One kind of product: m rows, n columns and k steps for each image and group. */
typedef struct product {
  df_conv conv;
  double *out, *workspace;
  const double *weight, *source, *bias; /* |weight| is dy for the gradient by the weight */
  int64_t m, n, k;
  int64_t matrices; /* images and groups, or groups alone */
  int64_t down, across, scratch;
  /* One block, its rows from |i| and columns from |j| on. */
  void (*multiply)(const struct product *p, int64_t matrix, int64_t i, int64_t j, double *scratch);
} product;

static int64_t rows_from(const product *p, int64_t i) {
  return df_min(DF_DOUBLE_TASK_ROWS, p->m - i);
}

static int64_t columns_from(const product *p, int64_t j) {
  return df_min(DF_DOUBLE_BLOCK, p->n - j);
}

/* Step |step| of the panels: |columns| numbers, and zeros behind them. */
static void put_step(double *row, int64_t columns, int64_t steps, int64_t step, double *panels) {
  for (int64_t t = columns; t % DF_DOUBLE_COLUMNS; t++)
    row[t] = 0.0;
  for (int64_t t = 0; t < columns; t += DF_DOUBLE_COLUMNS)
    memcpy(panels + t * steps + step * DF_DOUBLE_COLUMNS, row + t, DF_DOUBLE_COLUMNS * sizeof *row);
}

/* The scratch of a worker: panels, tiles of rows, and one row. */
static int64_t panels_of(const product *p) { return df_double_panels(p->n, p->k); }
static int64_t tiles_of(const product *p) { return df_double_tiles(p->m, p->k); }
static int64_t row_of(void) { return df_max(DF_DOUBLE_BLOCK, DF_DOUBLE_STEPS); }

/* Images by windows: of the op itself, where a step is a channel and tap, and a column a position
 * of y; and of the gradient by the image, where it is a filter and tap, and a position of x. */
static void multiply_planes(const product *p, int64_t matrix, int64_t i, int64_t j, double *scratch,
                            int forward) {
  const df_conv *conv = &p->conv;
  const df_window *w = &conv->window;
  const int64_t rows = rows_from(p, i), columns = columns_from(p, j);
  const int64_t group = matrix % conv->groups, size = forward ? w->in_size : w->out_size;
  const double *weight = p->weight + group * conv->filters * conv->channels * w->taps;
  const double *planes = p->source + matrix * (p->k / w->taps) * size;
  const int64_t filter = conv->channels * w->taps; /* numbers of one */
  double *panels = scratch, *tiles = panels + panels_of(p), *row = tiles + tiles_of(p);
  double *out = p->out + (matrix * p->m + i) * p->n + j;
  for (int64_t q = 0; q < p->k; q += DF_DOUBLE_STEPS) {
    const int64_t steps = df_min(DF_DOUBLE_STEPS, p->k - q);
    for (int64_t step = 0; step < steps; step++) {
      const int64_t plane = (q + step) / w->taps, tap = (q + step) % w->taps;
      const reading r = forward ? reading_image(w, tap) : reading_result(w, tap);
      read_plane(&r, planes + plane * size, j, j + columns, row);
      put_step(row, columns, steps, step, panels);
      for (int64_t t = 0; t < rows && !forward; t++)
        tiles[t / DF_DOUBLE_ROWS * DF_DOUBLE_ROWS * steps + t % DF_DOUBLE_ROWS +
              step * DF_DOUBLE_ROWS] = weight[plane * filter + (i + t) * w->taps + tap];
    }
    if (forward)
      df_double_gather_rows(rows, steps, weight + i * filter + q, filter, 1, tiles);
    df_double_block(rows, columns, steps, tiles, panels, out, p->n, q == 0);
  }
  for (int64_t t = 0; t < rows && p->k == 0; t++)
    memset(out + t * p->n, 0, (size_t)columns * sizeof *out);
  for (int64_t t = 0; t < rows && p->bias; t++)
    for (int64_t c = 0; c < columns; c++)
      out[t * p->n + c] += p->bias[group * p->m + i + t];
}

static void multiply_forward(const product *p, int64_t matrix, int64_t i, int64_t j,
                             double *scratch) {
  multiply_planes(p, matrix, i, j, scratch, 1);
}

static void multiply_backward(const product *p, int64_t matrix, int64_t i, int64_t j,
                              double *scratch) {
  multiply_planes(p, matrix, i, j, scratch, 0);
}

/* A step is a position of y of an image, a column a channel and tap. */
static void multiply_weight(const product *p, int64_t group, int64_t i, int64_t j,
                            double *scratch) {
  const df_conv *conv = &p->conv;
  const df_window *w = &conv->window;
  const int64_t rows = rows_from(p, i), columns = columns_from(p, j);
  double *panels = scratch, *tiles = panels + panels_of(p), *row = tiles + tiles_of(p);
  double *out = p->out + (group * p->m + i) * p->n + j;
  int32_t begins = 1;
  for (int64_t image = 0; image < conv->batch; image++) {
    const int64_t at = image * conv->groups + group;
    const double *dy = p->weight + (at * conv->filters + i) * w->out_size;
    const double *x = p->source + at * conv->channels * w->in_size;
    for (int64_t q = 0; q < w->out_size; q += DF_DOUBLE_STEPS) {
      const int64_t steps = df_min(DF_DOUBLE_STEPS, w->out_size - q);
      for (int64_t t = 0; t < df_round_up(columns, DF_DOUBLE_COLUMNS); t++) {
        double *to =
            panels + t / DF_DOUBLE_COLUMNS * DF_DOUBLE_COLUMNS * steps + t % DF_DOUBLE_COLUMNS;
        if (t < columns) {
          const reading r = reading_image(w, (j + t) % w->taps);
          read_plane(&r, x + (j + t) / w->taps * w->in_size, q, q + steps, row);
        } else {
          memset(row, 0, (size_t)steps * sizeof *row);
        }
        for (int64_t step = 0; step < steps; step++)
          to[step * DF_DOUBLE_COLUMNS] = row[step];
      }
      df_double_gather_rows(rows, steps, dy + q, w->out_size, 1, tiles);
      df_double_block(rows, columns, steps, tiles, panels, out, p->n, begins);
      begins = 0;
    }
  }
  for (int64_t t = 0; t < rows && begins; t++)
    memset(out + t * p->n, 0, (size_t)columns * sizeof *out);
}

/* ---- Runs ----------------------------------------------------------------------------------- */

static void multiply_blocks(void *context, int64_t index, int64_t count, int32_t worker) {
  const product *p = context;
  const int64_t blocks = p->down * p->across;
  int64_t at, end;
  df_task_range(index, count, p->matrices * blocks, 1, &at, &end);
  for (; at < end; at++)
    p->multiply(p, at / blocks, at % blocks / p->across * DF_DOUBLE_TASK_ROWS,
                at % p->across * DF_DOUBLE_BLOCK, p->workspace + worker * p->scratch);
}

static product product_of(df_conv conv, int forward, int weight) {
  const df_window *w = &conv.window;
  product p = {.conv = conv, .matrices = conv.groups};
  if (weight) {
    p.m = conv.filters;
    p.n = conv.channels * w->taps;
    p.k = conv.batch * w->out_size;
    p.multiply = multiply_weight;
  } else {
    p.m = forward ? conv.filters : conv.channels;
    p.n = forward ? w->out_size : w->in_size;
    p.k = (forward ? conv.channels : conv.filters) * w->taps;
    p.matrices *= conv.batch;
    p.multiply = forward ? multiply_forward : multiply_backward;
  }
  p.down = df_divide_up(p.m, DF_DOUBLE_TASK_ROWS);
  p.across = df_divide_up(p.n, DF_DOUBLE_BLOCK);
  p.scratch = panels_of(&p) + tiles_of(&p) + row_of();
  return p;
}

static int64_t tasks_of(const product *p, int32_t threads) {
  const int64_t total = p->matrices * p->down * p->across;
  const int64_t work = df_times(df_times(p->m, p->n), df_times(p->k, p->matrices));
  return df_max(1, df_min(total, df_min(4 * (int64_t)threads, work / GRAIN)));
}

static df_status run_product(const df_call *call, product p) {
  p.workspace = call->workspace;
  if (p.matrices * p.down * p.across > 0)
    df_parallel(call, multiply_blocks, &p, tasks_of(&p, call->threads));
  return DF_OK;
}

static df_status ask(const df_node *node, df_prepared *out, product p) {
  out->workspace =
      p.scratch * (int64_t)sizeof(double) * df_workers(node->threads, tasks_of(&p, node->threads));
  return DF_OK;
}

/* x, w, y: which operands have the shapes of image, weight and result. */
#define DEFINE(name, x_, w_, y_, first, forward, by_weight, weight_, source_, bias_)               \
  static const char *name##_accepts(const df_node *node) {                                         \
    return df_conv_accepts_shape(node, node->x_, node->w_, node->y_, first);                       \
  }                                                                                                \
  static df_status name##_prepare(const df_node *node, df_prepared *out, df_error *error) {        \
    (void)error;                                                                                   \
    const df_conv conv =                                                                           \
        df_conv_make(node->x_->shape, node->w_->shape, node->y_->shape, node->x_->rank,            \
                     node->attributes, node->n_attributes, first);                                 \
    return ask(node, out, product_of(conv, forward, by_weight));                                   \
  }                                                                                                \
  static df_status name##_run(const df_call *call) {                                               \
    const df_conv conv =                                                                           \
        df_conv_make(call->x_->shape, call->w_->shape, call->y_->shape, call->x_->rank,            \
                     call->attributes, call->n_attributes, first);                                 \
    product p = product_of(conv, forward, by_weight);                                              \
    p.out = call->outputs[0]->data;                                                                \
    p.weight = call->weight_->data;                                                                \
    p.source = call->source_->data;                                                                \
    p.bias = bias_;                                                                                \
    return run_product(call, p);                                                                   \
  }
DEFINE(forward, inputs[0], inputs[1], outputs[0], DF_CONV_STRIDES, 1, 0, inputs[1], inputs[0],
       call->n_inputs > 2 ? call->inputs[2]->data : NULL)
DEFINE(backward, outputs[0], inputs[1], inputs[0], DF_CONV_GRAD_INPUT_STRIDES, 0, 0, inputs[1],
       inputs[0], NULL)
DEFINE(weight, inputs[0], outputs[0], inputs[1], DF_CONV_GRAD_WEIGHT_STRIDES, 0, 1, inputs[1],
       inputs[0], NULL)

#define RECORD(op_, operands_, name_)                                                              \
  &(const df_kernel){.struct_size = sizeof(df_kernel),                                             \
                     .op = op_,                                                                    \
                     .name = op_ " f64 " DF_TEXT(DF_ISA),                                          \
                     .operands = operands_,                                                        \
                     .accepts = name_##_accepts,                                                   \
                     .prepare = name_##_prepare,                                                   \
                     .run = name_##_run}
DF_KERNELS(conv_float64) = {RECORD("conv", "f64,f64,f64?->f64", forward),
                            RECORD("conv_grad_input", "f64,f64->f64", backward),
                            RECORD("conv_grad_weight", "f64,f64->f64", weight), NULL};
