/* batch_norm.c: normalisation per channel, channels on axis 1 of (N, C, inner).
 *
 *   batch_norm             y = (x - mean) * scale / sqrt(var + epsilon) + bias        2 reads or
 * writes per element batch_norm_train       the same with the batch's mean and biased variance 3
 *   batch_norm_train_grad  dx = scale * inv_std * (dy - (dbias + xhat * dscale) / M)   5
 *                          with xhat = (x - mean) * inv_std, dbias = sum dy, dscale = sum dy *
 * xhat, M = N * inner
 *
 * Sums are made in runs of at most DF_CHUNK elements, each in vectors, and joined in double in the
 * order of the runs: the parts depend on the shape alone. The variance of a run is taken about its
 * own mean. */
#include "cpu.h"
#include "vector.h"

#include <math.h>

typedef struct layout {
  int64_t batch, channels, inner;
} layout;

static layout layout_of(const int64_t *shape, int32_t rank) {
  return (layout){shape[0], shape[1], df_product(shape, 2, rank)};
}

static const char *accepts(const df_node *node) {
  return node->inputs[0].rank < 2 ? "x must have a batch and a channel axis" : NULL;
}

static const char *accepts_grad(const df_node *node) {
  return node->inputs[1].rank < 2 ? "x must have a batch and a channel axis" : NULL;
}

/* ---- y = (x - mean) * factor + bias -----------------------------------------------------------
 */

/* The numbers of each channel, in the workspace or the node's own tensors. */
typedef struct affine {
  float *y;
  const float *x;
  layout l;
  const float *mean, *factor, *bias;
} affine;

static void normalize_run(float *y, const float *x, float mean, float factor, float bias,
                          int64_t count) {
  for (int64_t i = 0; i < count; i++)
    y[i] = (x[i] - mean) * factor + bias;
}

/* Rows of the batch for inner == 1, else planes. */
static void normalize_piece(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const affine *a = context;
  int64_t begin, end;
  if (a->l.inner == 1) {
    int64_t channels = a->l.channels;
    df_piece(index, count, a->l.batch, 1, &begin, &end);
    for (int64_t n = begin; n < end; n++)
      for (int64_t c = 0; c < channels; c++)
        a->y[n * channels + c] = (a->x[n * channels + c] - a->mean[c]) * a->factor[c] + a->bias[c];
    return;
  }
  df_piece(index, count, a->l.batch * a->l.channels, 1, &begin, &end);
  for (int64_t plane = begin; plane < end; plane++) {
    int64_t c = plane % a->l.channels, at = plane * a->l.inner;
    normalize_run(a->y + at, a->x + at, a->mean[c], a->factor[c], a->bias[c], a->l.inner);
  }
}

static void normalize(const df_call *call, affine *a) {
  int64_t total = a->l.batch * a->l.channels * a->l.inner;
  df_parallel(call, normalize_piece, a, df_pieces(call, total, DF_GRAIN));
}

static df_status prepare_inference(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  out->workspace = node->inputs[0].shape[1] * (int64_t)sizeof(float);
  return DF_OK;
}

static df_status run_inference(const df_call *call) {
  const df_tensor *x = &call->inputs[0];
  const float *scale = call->inputs[1].data, *variance = call->inputs[4].data;
  double epsilon = df_attr_float(call, 0, 1e-5);
  float *factor = call->workspace;
  affine a = {.y = call->outputs[0].data,
              .x = x->data,
              .l = layout_of(x->shape, x->rank),
              .mean = call->inputs[3].data,
              .factor = factor,
              .bias = call->inputs[2].data};
  for (int64_t c = 0; c < a.l.channels; c++)
    factor[c] = (float)(scale[c] / sqrt(variance[c] + epsilon));
  normalize(call, &a);
  return DF_OK;
}

/* ---- Runs of one channel ----------------------------------------------------------------------
 */

/* Element |at| of channel |c|, counted over batch and inner. */
static int64_t place(const layout *l, int64_t c, int64_t at) {
  return (at / l->inner * l->channels + c) * l->inner + at % l->inner;
}

/* |count| elements of channel |c| from element |at| on: where they lie when they lie together, else
 * in |buffer|. */
static const float *run_of(const float *x, const layout *l, int64_t c, int64_t at, int64_t count,
                           float *buffer) {
  if (at % l->inner + count <= l->inner)
    return x + place(l, c, at);
  if (l->inner == 1) {
    const float *from = x + at * l->channels + c;
    for (int64_t i = 0; i < count; i++)
      buffer[i] = from[i * l->channels];
    return buffer;
  }
  for (int64_t i = 0; i < count;) {
    int64_t length = df_min(count - i, l->inner - (at + i) % l->inner);
    memcpy(buffer + i, x + place(l, c, at + i), (size_t)length * sizeof(float));
    i += length;
  }
  return buffer;
}

/* How many elements the run at |at| has: whole planes when they are small, parts of one when it is
 * large. */
static int64_t run_length(const layout *l, int64_t at, int64_t total) {
  if (l->inner <= DF_CHUNK / 2)
    return df_min(total - at, DF_CHUNK / l->inner * l->inner);
  return df_min(DF_CHUNK, l->inner - at % l->inner);
}

static float sum_run(const float *x, int64_t count) {
  df_vec sum[2] = {vec_zero(), vec_zero()};
  int64_t i = 0;
  for (; i + 2 * DF_LANES <= count; i += 2 * DF_LANES) {
    sum[0] += vec_load(x + i);
    sum[1] += vec_load(x + i + DF_LANES);
  }
  for (; i < count; i += DF_LANES)
    sum[0] += vec_load_part(x + i, df_min(DF_LANES, count - i));
  return vec_sum(sum[0] + sum[1]);
}

/* Sum of (x - mean) squared. */
static float spread_run(const float *x, float mean, int64_t count) {
  df_vec sum[2] = {vec_zero(), vec_zero()};
  int64_t i = 0;
  for (; i + 2 * DF_LANES <= count; i += 2 * DF_LANES) {
    df_vec first = vec_load(x + i) - mean, second = vec_load(x + i + DF_LANES) - mean;
    sum[0] += first * first;
    sum[1] += second * second;
  }
  float rest = vec_sum(sum[0] + sum[1]);
  for (; i < count; i++)
    rest += (x[i] - mean) * (x[i] - mean);
  return rest;
}

/* Sums of dy and of dy * (x - mean). */
static void sums_run(const float *dy, const float *x, float mean, int64_t count, double *plain,
                     double *weighted) {
  df_vec sum = vec_zero(), product = vec_zero();
  int64_t i = 0;
  for (; i + DF_LANES <= count; i += DF_LANES) {
    df_vec d = vec_load(dy + i);
    sum += d;
    product += d * (vec_load(x + i) - mean);
  }
  float sum_rest = vec_sum(sum), product_rest = vec_sum(product);
  for (; i < count; i++) {
    sum_rest += dy[i];
    product_rest += dy[i] * (x[i] - mean);
  }
  *plain += sum_rest;
  *weighted += product_rest;
}

/* ---- Parts: runs of one channel that one thread does -------------------------------------------
 */

/* Number and length of the parts of a channel: enough of them that a few channels still fill the
 * threads. */
typedef struct parts {
  int64_t count, length, total;
} parts;

static parts parts_of(const layout *l, int32_t threads) {
  int64_t total = l->batch * l->inner;
  int64_t run = l->inner <= DF_CHUNK / 2 ? DF_CHUNK / l->inner * l->inner : l->inner;
  int64_t wanted = threads > 1 ? df_divide_up(4 * (int64_t)threads, df_max(1, l->channels)) : 1;
  int64_t runs = df_max(1, df_divide_up(total, run));
  int64_t length = df_divide_up(runs, df_min(runs, wanted)) * run;
  return (parts){df_max(1, df_divide_up(total, length)), length, total};
}

/* Two doubles per channel and part. */
static int64_t parts_bytes(const layout *l, int32_t threads) {
  return l->channels * parts_of(l, threads).count * 2 * (int64_t)sizeof(double);
}

typedef struct statistics {
  const float *x;
  const float *dy;   /* null when mean and spread are wanted */
  const float *mean; /* of the channels, when dy is not null */
  layout l;
  parts parts;
  double *result; /* two per channel and part */
} statistics;

/* Mean and sum of squared deviations of one part, its runs joined by Chan's formula. */
static void moments(const statistics *s, int64_t c, int64_t begin, int64_t end, double *result) {
  float buffer[DF_CHUNK];
  double mean = 0.0, spread = 0.0;
  for (int64_t at = begin; at < end;) {
    int64_t count = run_length(&s->l, at, end);
    const float *x = run_of(s->x, &s->l, c, at, count, buffer);
    float run_mean = sum_run(x, count) / (float)count;
    double run_spread = spread_run(x, run_mean, count);
    double seen = (double)(at - begin), all = seen + (double)count, delta = run_mean - mean;
    mean += delta * (double)count / all;
    spread += run_spread + delta * delta * seen * (double)count / all;
    at += count;
  }
  result[0] = mean;
  result[1] = spread;
}

static void sums(const statistics *s, int64_t c, int64_t begin, int64_t end, double *result) {
  float x_buffer[DF_CHUNK], dy_buffer[DF_CHUNK];
  result[0] = result[1] = 0.0;
  for (int64_t at = begin; at < end;) {
    int64_t count = run_length(&s->l, at, end);
    sums_run(run_of(s->dy, &s->l, c, at, count, dy_buffer),
             run_of(s->x, &s->l, c, at, count, x_buffer), s->mean[c], count, &result[0],
             &result[1]);
    at += count;
  }
}

static void statistics_piece(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const statistics *s = context;
  int64_t begin, end;
  df_piece(index, count, s->l.channels * s->parts.count, 1, &begin, &end);
  for (int64_t at = begin; at < end; at++) {
    int64_t from = at % s->parts.count * s->parts.length;
    int64_t to = df_min(s->parts.total, from + s->parts.length);
    (s->dy ? sums : moments)(s, at / s->parts.count, from, to, s->result + 2 * at);
  }
}

static void take_statistics(const df_call *call, statistics *s) {
  s->parts = parts_of(&s->l, call->threads);
  int64_t pieces = df_pieces(call, s->l.channels * s->parts.total, DF_GRAIN);
  df_parallel(call, statistics_piece, s, df_min(pieces, s->l.channels * s->parts.count));
}

/* ---- batch_norm_train -------------------------------------------------------------------------
 */

/* The workspace: results of the parts, then mean and factor per channel. */
static df_status prepare_train(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  layout l = layout_of(node->inputs[0].shape, node->inputs[0].rank);
  out->workspace = parts_bytes(&l, node->threads) + 2 * l.channels * (int64_t)sizeof(float);
  return DF_OK;
}

/* The running value: what was, times momentum, and the batch's. */
static void blend(const df_tensor *to, const df_tensor *from, int64_t c, double batch,
                  double momentum) {
  if (to->data)
    ((float *)to->data)[c] =
        (float)(((const float *)from->data)[c] * momentum + batch * (1.0 - momentum));
}

static df_status run_train(const df_call *call) {
  const df_tensor *x = &call->inputs[0];
  const float *scale = call->inputs[1].data;
  double epsilon = df_attr_float(call, 0, 1e-5), momentum = df_attr_float(call, 1, 0.9);
  float *saved_mean = call->n_outputs > 3 ? call->outputs[3].data : NULL;
  float *saved_inv_std = call->n_outputs > 4 ? call->outputs[4].data : NULL;
  layout l = layout_of(x->shape, x->rank);
  statistics s = {.x = x->data, .l = l, .result = call->workspace};
  take_statistics(call, &s);
  float *mean = (float *)(s.result + 2 * l.channels * s.parts.count), *factor = mean + l.channels;
  for (int64_t c = 0; c < l.channels; c++) {
    const double *result = s.result + 2 * c * s.parts.count;
    double channel_mean = result[0], spread = result[1];
    for (int64_t part = 1; part < s.parts.count; part++) {
      double seen = (double)(part * s.parts.length);
      double count = (double)df_min(s.parts.length, s.parts.total - part * s.parts.length);
      double delta = result[2 * part] - channel_mean;
      channel_mean += delta * count / (seen + count);
      spread += result[2 * part + 1] + delta * delta * seen * count / (seen + count);
    }
    double variance = spread / (double)s.parts.total;
    double inv_std = 1.0 / sqrt(variance + epsilon);
    mean[c] = (float)channel_mean;
    factor[c] = (float)(scale[c] * inv_std);
    blend(&call->outputs[1], &call->inputs[3], c, channel_mean, momentum);
    blend(&call->outputs[2], &call->inputs[4], c, variance, momentum);
    if (saved_mean)
      saved_mean[c] = (float)channel_mean;
    if (saved_inv_std)
      saved_inv_std[c] = (float)inv_std;
  }
  affine a = {.y = call->outputs[0].data,
              .x = x->data,
              .l = l,
              .mean = mean,
              .factor = factor,
              .bias = call->inputs[2].data};
  normalize(call, &a);
  return DF_OK;
}

/* ---- batch_norm_train_grad --------------------------------------------------------------------
 */

typedef struct backward {
  float *dx;
  const float *dy, *x;
  layout l;
  const float *factor, *shift, *slope; /* dx = factor * dy + slope * x + shift */
  const float *mean;
} backward;

static void backward_piece(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const backward *b = context;
  int64_t begin, end, inner = b->l.inner, channels = b->l.channels;
  if (inner == 1) {
    df_piece(index, count, b->l.batch, 1, &begin, &end);
    for (int64_t at = begin * channels; at < end * channels; at += channels)
      for (int64_t c = 0; c < channels; c++)
        b->dx[at + c] =
            b->factor[c] * b->dy[at + c] + b->slope[c] * (b->x[at + c] - b->mean[c]) + b->shift[c];
    return;
  }
  df_piece(index, count, b->l.batch * channels, 1, &begin, &end);
  for (int64_t plane = begin; plane < end; plane++) {
    int64_t c = plane % channels;
    float factor = b->factor[c], slope = b->slope[c], shift = b->shift[c], mean = b->mean[c];
    float *dx = b->dx + plane * inner;
    const float *dy = b->dy + plane * inner, *x = b->x + plane * inner;
    for (int64_t i = 0; i < inner; i++)
      dx[i] = factor * dy[i] + slope * (x[i] - mean) + shift;
  }
}

/* The workspace: results of the parts, then factor, slope and shift per channel. */
static df_status prepare_grad(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  layout l = layout_of(node->inputs[1].shape, node->inputs[1].rank);
  out->workspace = parts_bytes(&l, node->threads) + 3 * l.channels * (int64_t)sizeof(float);
  return DF_OK;
}

static df_status run_grad(const df_call *call) {
  const df_tensor *x = &call->inputs[1];
  const float *scale = call->inputs[2].data, *inv_std = call->inputs[4].data;
  float *dscale = call->n_outputs > 1 ? call->outputs[1].data : NULL;
  float *dbias = call->n_outputs > 2 ? call->outputs[2].data : NULL;
  layout l = layout_of(x->shape, x->rank);
  statistics s = {.x = x->data,
                  .dy = call->inputs[0].data,
                  .mean = call->inputs[3].data,
                  .l = l,
                  .result = call->workspace};
  take_statistics(call, &s);
  float *factor = (float *)(s.result + 2 * l.channels * s.parts.count);
  float *slope = factor + l.channels, *shift = slope + l.channels;
  double total = (double)s.parts.total;
  for (int64_t c = 0; c < l.channels; c++) {
    double plain = 0.0, weighted = 0.0;
    for (int64_t part = 0; part < s.parts.count; part++) {
      plain += s.result[2 * (c * s.parts.count + part)];
      weighted += s.result[2 * (c * s.parts.count + part) + 1];
    }
    weighted *= inv_std[c];
    if (dbias)
      dbias[c] = (float)plain;
    if (dscale)
      dscale[c] = (float)weighted;
    double all = (double)scale[c] * inv_std[c];
    factor[c] = (float)all;
    slope[c] = (float)(-all * inv_std[c] * weighted / total);
    shift[c] = (float)(-all * plain / total);
  }
  backward b = {.dx = call->outputs[0].data,
                .dy = s.dy,
                .x = s.x,
                .l = l,
                .factor = factor,
                .shift = shift,
                .slope = slope,
                .mean = s.mean};
  if (b.dx)
    df_parallel(call, backward_piece, &b, df_pieces(call, l.channels * s.parts.total, DF_GRAIN));
  return DF_OK;
}

/* ---- Records ----------------------------------------------------------------------------------
 */

DF_KERNELS(batch_norm) = {
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "batch_norm",
                       .name = "batch_norm f32 " DF_TEXT(DF_ISA),
                       .operands = "f32,f32,f32,f32,f32->f32",
                       .inplace = "0<0",
                       .accepts = accepts,
                       .prepare = prepare_inference,
                       .run = run_inference},
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "batch_norm_train",
                       .name = "batch_norm_train f32 " DF_TEXT(DF_ISA),
                       .operands = "f32,f32,f32,f32,f32->f32,f32,f32,f32?,f32?",
                       .inplace = "0<0,1<3,2<4",
                       .accepts = accepts,
                       .prepare = prepare_train,
                       .run = run_train},
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "batch_norm_train_grad",
                       .name = "batch_norm_train_grad f32 " DF_TEXT(DF_ISA),
                       .operands = "f32,f32,f32,f32,f32->f32,f32,f32",
                       .inplace = "0<0,0<1",
                       .accepts = accepts_grad,
                       .prepare = prepare_grad,
                       .run = run_grad},
    NULL};
