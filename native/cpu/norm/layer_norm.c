/* norm/layer_norm.c: normalization of rows. x is seen as (rows, n).
 *
 *   layer_norm       y = (x - mean) inverse scale + bias, inverse = 1 / sqrt(variance + epsilon)
 *   layer_norm_grad  g = dy scale, x^ = (x - mean) inverse
 *                    dx = inverse (g - mean(g) - x^ mean(g x^))
 *                    dscale = sum over rows of dy x^, dbias = sum over rows of dy
 *
 * Without centering mean and mean(g) are 0. y may overwrite x, dx both dy and x. Sums of a row are
 * made in blocks and joined in double; those over rows in bands of BAND rows, whose number depends
 * on the shape alone. */
#include "simd/block.h"

enum {
  BAND = 32,         /* rows whose sums a float holds */
  MOST_PARTIALS = 16 /* of the sums over rows: each has its own in the workspace */
};

typedef struct norm {
  float *y, *mean, *inverse; /* mean and inverse may be null */
  const float *x, *scale, *bias;
  int64_t rows, n;
  double epsilon;
  int64_t center;
} norm;

static double row_sum(const float *x, int64_t n) {
  double sum = 0.0;
  for (int64_t begin = 0; begin < n; begin += DF_CHUNK)
    sum += (double)df_sum_block(x + begin, df_min(DF_CHUNK, n - begin));
  return sum;
}

/* Sum of (x - mean)^2. */
static double row_squares(const float *x, float mean, int64_t n) {
  float squares[DF_CHUNK];
  double sum = 0.0;
  for (int64_t begin = 0; begin < n; begin += DF_CHUNK) {
    const int64_t some = df_min(DF_CHUNK, n - begin);
    for (int64_t i = 0; i < some; i++) {
      const float d = x[begin + i] - mean;
      squares[i] = d * d;
    }
    sum += (double)df_sum_block(squares, some);
  }
  return sum;
}

static void norm_row(const norm *s, int64_t row) {
  const float *x = s->x + row * s->n;
  float *y = s->y + row * s->n;
  const int64_t n = s->n;
  const double exact = s->center ? row_sum(x, n) / (double)n : 0.0;
  const float mean = (float)exact;
  /* The mean that is subtracted is rounded: its error comes out of the mean square again. */
  const double rest = exact - (double)mean;
  const double variance = row_squares(x, mean, n) / (double)n - rest * rest;
  const float inverse = (float)(1.0 / sqrt(variance + s->epsilon));
  if (s->mean)
    s->mean[row] = mean;
  if (s->inverse)
    s->inverse[row] = inverse;
  const float *scale = s->scale, *bias = s->bias;
  if (scale && bias) {
    DF_IVDEP
    for (int64_t i = 0; i < n; i++)
      y[i] = (x[i] - mean) * inverse * scale[i] + bias[i];
  } else if (scale) {
    DF_IVDEP
    for (int64_t i = 0; i < n; i++)
      y[i] = (x[i] - mean) * inverse * scale[i];
  } else {
    DF_IVDEP
    for (int64_t i = 0; i < n; i++)
      y[i] = (x[i] - mean) * inverse + (bias ? bias[i] : 0.0f);
  }
}

static void norm_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const norm *s = context;
  int64_t row, end;
  df_task_range(index, count, s->rows, 1, &row, &end);
  for (; row < end; row++)
    norm_row(s, row);
}

static const float *optional_input(const df_call *call, int32_t index) {
  return index < call->n_inputs ? call->inputs[index]->data : NULL;
}

/* Elements before the axis where a row begins. */
static int64_t row_count(const df_call *call, const df_tensor *x) {
  return df_product(x->shape, 0, df_axis(call, DF_LAYER_NORM_AXIS, x->rank));
}

static df_status norm_run(const df_call *call) {
  const df_tensor *x = call->inputs[0];
  const int64_t elements = df_elements(x);
  if (elements == 0) { /* rows of no elements have no mean: zeros */
    for (int32_t i = 1; i < 3; i++)
      if (call->outputs[i]->data)
        memset(call->outputs[i]->data, 0, (size_t)row_count(call, x) * sizeof(float));
    return DF_OK;
  }
  norm s = {.y = call->outputs[0]->data,
            .mean = call->outputs[1]->data,
            .inverse = call->outputs[2]->data,
            .x = x->data,
            .scale = optional_input(call, 1),
            .bias = optional_input(call, 2),
            .rows = row_count(call, x),
            .epsilon = df_attr_float(call, DF_LAYER_NORM_EPSILON),
            .center = df_attr_int(call, DF_LAYER_NORM_CENTER)};
  s.n = elements / s.rows;
  df_parallel(call, norm_task, &s, df_min(s.rows, df_task_count(call, elements, DF_GRAIN / 4)));
  return DF_OK;
}

/* ---- Gradient ------------------------------------------------------------------------------- */

typedef struct norm_grad {
  float *dx;
  const float *dy, *x, *scale, *mean, *inverse;
  double *sums; /* per partial: dscale and dbias; null when nobody wants them */
  float *bands; /* per partial: the same of a band */
  int64_t rows, n, center;
} norm_grad;

static int64_t partial_count(int64_t rows, int64_t elements) {
  return df_max(1, df_min(df_min(MOST_PARTIALS, df_divide_up(rows, BAND)), elements / DF_GRAIN));
}

static void add_row(float *dscale, float *dbias, const float *dy, const float *x, float mean,
                    float inverse, int64_t n) {
  DF_IVDEP
  for (int64_t i = 0; i < n; i++) {
    dscale[i] += dy[i] * ((x[i] - mean) * inverse);
    dbias[i] += dy[i];
  }
}

/* Adds the band to the sums of the partial and clears it. */
static void close_band(double *sums, float *band, int64_t count) {
  DF_IVDEP
  for (int64_t i = 0; i < count; i++) {
    sums[i] += (double)band[i];
    band[i] = 0.0f;
  }
}

static void grad_row(float *dx, const float *dy, const float *x, const float *scale, float mean,
                     float inverse, int64_t n, int64_t center) {
  float g[DF_CHUNK], h[DF_CHUNK];
  double sum = 0.0, with_x = 0.0;
  for (int64_t begin = 0; begin < n; begin += DF_CHUNK) {
    const int64_t some = df_min(DF_CHUNK, n - begin);
    for (int64_t i = 0; i < some; i++) {
      g[i] = scale ? dy[begin + i] * scale[begin + i] : dy[begin + i];
      h[i] = (x[begin + i] - mean) * inverse;
    }
    sum += (double)df_sum_block(g, some);
    with_x += (double)df_dot_block(g, h, some);
  }
  const float middle = center ? (float)(sum / (double)n) : 0.0f;
  const float slope = (float)(with_x / (double)n);
  DF_IVDEP
  for (int64_t i = 0; i < n; i++) {
    const float here = scale ? dy[i] * scale[i] : dy[i];
    dx[i] = inverse * (here - middle - (x[i] - mean) * inverse * slope);
  }
}

static void grad_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const norm_grad *s = context;
  const int64_t n = s->n;
  double *sums = s->sums ? s->sums + index * 2 * n : NULL;
  float *band = s->sums ? s->bands + index * 2 * n : NULL;
  int64_t begin, end;
  df_task_range(index, count, s->rows, 1, &begin, &end);
  if (sums) {
    memset(sums, 0, (size_t)(2 * n) * sizeof *sums);
    memset(band, 0, (size_t)(2 * n) * sizeof *band);
  }
  for (int64_t row = begin; row < end; row++) {
    const float *dy = s->dy + row * n, *x = s->x + row * n;
    if (sums) { /* before dx overwrites what it reads */
      add_row(band, band + n, dy, x, s->mean[row], s->inverse[row], n);
      if ((row - begin + 1) % BAND == 0 || row + 1 == end)
        close_band(sums, band, 2 * n);
    }
    if (s->dx)
      grad_row(s->dx + row * n, dy, x, s->scale, s->mean[row], s->inverse[row], n, s->center);
  }
}

static df_status grad_prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  if (node->outputs[1]->dtype == DF_NONE && node->outputs[2]->dtype == DF_NONE)
    return DF_OK;
  const df_operand *x = node->inputs[1];
  const int64_t axis = df_axis(node, DF_LAYER_NORM_AXIS, x->rank);
  const int64_t rows = df_product(x->shape, 0, axis), n = df_product(x->shape, axis, x->rank);
  const int64_t each = 2 * n * (int64_t)(sizeof(double) + sizeof(float));
  out->workspace = partial_count(rows, rows * n) * each;
  return DF_OK;
}

static df_status grad_run(const df_call *call) {
  const df_tensor *x = call->inputs[1];
  float *dscale = call->outputs[1]->data, *dbias = call->outputs[2]->data;
  const int64_t elements = df_elements(x);
  const int64_t axis = df_axis(call, DF_LAYER_NORM_AXIS, x->rank);
  const int64_t n = df_product(x->shape, axis, x->rank);
  if (elements == 0) {
    for (int32_t i = 1; i < 3; i++)
      if (call->outputs[i]->data && n > 0)
        memset(call->outputs[i]->data, 0, (size_t)n * sizeof(float));
    return DF_OK;
  }
  norm_grad s = {.dx = call->outputs[0]->data,
                 .dy = call->inputs[0]->data,
                 .x = x->data,
                 .scale = call->inputs[2]->data,
                 .mean = call->inputs[3]->data,
                 .inverse = call->inputs[4]->data,
                 .rows = elements / n,
                 .n = n,
                 .center = df_attr_int(call, DF_LAYER_NORM_CENTER)};
  int64_t partials = df_min(s.rows, df_task_count(call, elements, DF_GRAIN / 4));
  if (dscale || dbias) {
    partials = partial_count(s.rows, elements);
    s.sums = call->workspace;
    s.bands = (float *)(s.sums + partials * 2 * n);
  }
  df_parallel(call, grad_task, &s, partials);
  for (int64_t i = 0; i < n && s.sums; i++) {
    double scale_sum = 0.0, bias_sum = 0.0;
    for (int64_t partial = 0; partial < partials; partial++) {
      scale_sum += s.sums[partial * 2 * n + i];
      bias_sum += s.sums[partial * 2 * n + n + i];
    }
    if (dscale)
      dscale[i] = (float)scale_sum;
    if (dbias)
      dbias[i] = (float)bias_sum;
  }
  return DF_OK;
}

DF_KERNELS(layer_norm) = {
    DF_KERNEL("layer_norm", "f32", "f32,f32?,f32?->f32,f32?,f32?", "0<0", norm_run),
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "layer_norm_grad",
                       .name = "layer_norm_grad f32 " DF_TEXT(DF_ISA),
                       .operands = "f32,f32,f32?,f32,f32->f32?,f32?,f32?",
                       .inplace = "0<0,0<1",
                       .prepare = grad_prepare,
                       .run = grad_run},
    NULL};
