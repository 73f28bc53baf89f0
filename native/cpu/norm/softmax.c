/* norm/softmax.c: softmax, log_softmax and their gradients along one axis of a float tensor.
 *
 * x is seen as (outer, size, inner). With inner = 1 a unit of work is a row, else up to COLUMNS
 * columns. Outputs may overwrite inputs.
 *
 *   softmax           y = e^(x - m) / s, m = max x, s = sum e^(x - m)
 *   softmax_grad      dx = y (dy - sum dy y)
 *   log_softmax       y = x - m - log s
 *   log_softmax_grad  dx = dy - e^y sum dy */
#include "norm/softmax.h"

enum { COLUMNS = 256 };

typedef struct softmax_context {
  float *out;
  const float *a, *b; /* x; or dy and y */
  int64_t outer, size, inner;
} softmax_context;

/* ---- Rows ----------------------------------------------------------------------------------- */

static void softmax_row(float *y, const float *x, int64_t n) {
  const float scale = (float)(1.0 / df_exp_row(y, x, df_largest_of_row(x, n), n));
  for (int64_t i = 0; i < n; i++)
    y[i] *= scale;
}

static void log_softmax_row(float *y, const float *x, int64_t n) {
  const float m = df_largest_of_row(x, n);
  const float log_sum = (float)log(df_exp_sum_row(x, m, n));
  DF_IVDEP
  for (int64_t i = 0; i < n; i++)
    y[i] = x[i] - m - log_sum;
}

static void softmax_grad_row(float *dx, const float *dy, const float *y, int64_t n) {
  double sum = 0.0;
  for (int64_t begin = 0; begin < n; begin += DF_CHUNK)
    sum += (double)df_dot_block(dy + begin, y + begin, df_min(DF_CHUNK, n - begin));
  const float mean = (float)sum;
  DF_IVDEP
  for (int64_t i = 0; i < n; i++)
    dx[i] = y[i] * (dy[i] - mean);
}

static void log_softmax_grad_row(float *dx, const float *dy, const float *y, int64_t n) {
  double total = 0.0;
  for (int64_t begin = 0; begin < n; begin += DF_CHUNK)
    total += (double)df_sum_block(dy + begin, df_min(DF_CHUNK, n - begin));
  const float sum = (float)total;
  DF_IVDEP
  for (int64_t i = 0; i < n; i++)
    dx[i] = dy[i] - df_exp(y[i]) * sum;
}

/* ---- Columns: n <= COLUMNS neighbours, rows |inner| apart
 * ---------------------------------------- */

static void softmax_columns(float *y, const float *x, int64_t size, int64_t inner, int64_t n) {
  float m[COLUMNS], scale[COLUMNS];
  double sum[COLUMNS];
  df_max_columns(m, x, size, inner, n);
  for (int64_t j = 0; j < n; j++)
    sum[j] = 0.0;
  for (int64_t k = 0; k < size; k++) {
    const float *from = x + k * inner;
    float *to = y + k * inner;
    DF_IVDEP
    for (int64_t j = 0; j < n; j++) {
      const float e = df_exp_below_zero(from[j] - m[j]);
      to[j] = e;
      sum[j] += (double)e;
    }
  }
  for (int64_t j = 0; j < n; j++)
    scale[j] = (float)(1.0 / sum[j]);
  for (int64_t k = 0; k < size; k++) {
    float *to = y + k * inner;
    DF_IVDEP
    for (int64_t j = 0; j < n; j++)
      to[j] *= scale[j];
  }
}

static void log_softmax_columns(float *y, const float *x, int64_t size, int64_t inner, int64_t n) {
  float m[COLUMNS], log_sum[COLUMNS];
  double sum[COLUMNS];
  df_max_columns(m, x, size, inner, n);
  df_exp_sum_columns(sum, x, m, size, inner, n);
  for (int64_t j = 0; j < n; j++)
    log_sum[j] = (float)log(sum[j]);
  for (int64_t k = 0; k < size; k++) {
    const float *from = x + k * inner;
    float *to = y + k * inner;
    DF_IVDEP
    for (int64_t j = 0; j < n; j++)
      to[j] = from[j] - m[j] - log_sum[j];
  }
}

static void softmax_grad_columns(float *dx, const float *dy, const float *y, int64_t size,
                                 int64_t inner, int64_t n) {
  double sum[COLUMNS];
  float mean[COLUMNS];
  for (int64_t j = 0; j < n; j++)
    sum[j] = 0.0;
  for (int64_t k = 0; k < size; k++)
    for (int64_t j = 0; j < n; j++)
      sum[j] += (double)(dy[k * inner + j] * y[k * inner + j]);
  for (int64_t j = 0; j < n; j++)
    mean[j] = (float)sum[j];
  for (int64_t k = 0; k < size; k++) {
    DF_IVDEP
    for (int64_t j = 0; j < n; j++)
      dx[k * inner + j] = y[k * inner + j] * (dy[k * inner + j] - mean[j]);
  }
}

static void log_softmax_grad_columns(float *dx, const float *dy, const float *y, int64_t size,
                                     int64_t inner, int64_t n) {
  double total[COLUMNS];
  float sum[COLUMNS];
  for (int64_t j = 0; j < n; j++)
    total[j] = 0.0;
  for (int64_t k = 0; k < size; k++)
    for (int64_t j = 0; j < n; j++)
      total[j] += (double)dy[k * inner + j];
  for (int64_t j = 0; j < n; j++)
    sum[j] = (float)total[j];
  for (int64_t k = 0; k < size; k++) {
    DF_IVDEP
    for (int64_t j = 0; j < n; j++)
      dx[k * inner + j] = dy[k * inner + j] - df_exp(y[k * inner + j]) * sum[j];
  }
}

/* ---- Running -------------------------------------------------------------------------------- */

/* name_task and name_run from name_row and name_columns, of one input or two. */
#define ONE(function, offset, ...) function(out, a, __VA_ARGS__)
#define TWO(function, offset, ...) function(out, a, s->b + offset, __VA_ARGS__)
#define DEFINE(name, INPUTS)                                                                       \
  static void name##_task(void *context, int64_t index, int64_t count, int32_t worker) {           \
    (void)worker;                                                                                  \
    const softmax_context *s = context;                                                            \
    const int64_t chunks = df_divide_up(s->inner, COLUMNS);                                        \
    int64_t unit, end;                                                                             \
    df_task_range(index, count, s->outer * chunks, 1, &unit, &end);                                \
    for (; unit < end; unit++) {                                                                   \
      const int64_t first = unit % chunks * COLUMNS;                                               \
      const int64_t offset = unit / chunks * s->size * s->inner + first;                           \
      float *out = s->out + offset;                                                                \
      const float *a = s->a + offset;                                                              \
      if (s->inner == 1)                                                                           \
        INPUTS(name##_row, offset, s->size);                                                       \
      else                                                                                         \
        INPUTS(name##_columns, offset, s->size, s->inner, df_min(COLUMNS, s->inner - first));      \
    }                                                                                              \
  }                                                                                                \
  static df_status name##_run(const df_call *call) { return run(call, name##_task); }

static df_status run(const df_call *call, df_task task) {
  const df_tensor *y = call->outputs[0];
  const int64_t axis = df_axis(call, DF_SOFTMAX_AXIS, y->rank), elements = df_elements(y);
  if (elements == 0)
    return DF_OK;
  softmax_context context = {.out = y->data,
                             .a = call->inputs[0]->data,
                             .b = call->inputs[call->n_inputs - 1]->data,
                             .outer = df_product(y->shape, 0, axis),
                             .size = y->rank ? y->shape[axis] : 1,
                             .inner = df_product(y->shape, axis + 1, y->rank)};
  const int64_t units = context.outer * df_divide_up(context.inner, COLUMNS);
  df_parallel(call, task, &context, df_min(units, df_task_count(call, elements, DF_GRAIN / 4)));
  return DF_OK;
}

DEFINE(softmax, ONE)
DEFINE(log_softmax, ONE)
DEFINE(softmax_grad, TWO)
DEFINE(log_softmax_grad, TWO)

DF_KERNELS(softmax) = {
    DF_KERNEL("softmax", "f32", "f32->f32", "0<0", softmax_run),
    DF_KERNEL("log_softmax", "f32", "f32->f32", "0<0", log_softmax_run),
    DF_KERNEL("softmax_grad", "f32", "f32,f32->f32", "0<0,0<1", softmax_grad_run),
    DF_KERNEL("log_softmax_grad", "f32", "f32,f32->f32", "0<0,0<1", log_softmax_grad_run), NULL};
