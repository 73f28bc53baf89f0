/* norm/batch_norm.c: normalisation per channel, channels on axis 1 of (N, C, inner).
 *
 *   batch_norm: y = (x - mean) * scale / sqrt(var + epsilon) + bias
 *   batch_norm_train: the same with the batch's mean and biased variance
 *   batch_norm_train_grad: dx = scale * inv_std * (dy - (dbias + xhat * dscale) / M), where
 *     xhat = (x - mean) * inv_std, dbias = sum dy, dscale = sum dy * xhat, M = N * inner
 *   batch_norm_train_relu: max(y, 0); its gradient takes 0 for dy where y, computed again as it
 * was, isn't above 0
 *
 * Where a thread has a channel for itself, it makes the sums and what follows from them while the
 * channel is in the cache: every tensor comes from far once, 2 or 3 elements are moved per position
 * and not 3 or 5. */
#include "norm/channel_statistics.h"
#include "simd/vector.h"

#include <math.h>

enum { CACHE_FLOATS = 3 << 17 /* 1.5 MiB of the second cache */ };

static const char *accepts(const df_node *node) {
  return node->inputs[0]->rank < 2 ? "x must have a batch and a channel axis" : NULL;
}

static const char *accepts_grad(const df_node *node) {
  return node->inputs[1]->rank < 2 ? "x must have a batch and a channel axis" : NULL;
}

/* ---- y = (x - mean) * factor + bias --------------------------------------------------------- */

/* The numbers of each channel, in the workspace or the node's own tensors. */
typedef struct affine {
  float *y;
  const float *x;
  df_channels l;
  const float *mean, *factor, *bias;
  int relu;
} affine;

/* Fetches what lies |ahead| of it. */
static inline __attribute__((always_inline)) void run_as(float *y, const float *x, float mean,
                                                         float factor, float bias, int relu,
                                                         int64_t count, int64_t ahead) {
  int64_t i = 0;
  for (; i + DF_LANES <= count; i += DF_LANES) {
    __builtin_prefetch(x + i + ahead);
    df_vec value = (vec_load(x + i) - mean) * factor + bias;
    vec_store(y + i, relu ? vec_relu(value) : value);
  }
  for (; i < count; i++) {
    float value = (x[i] - mean) * factor + bias;
    y[i] = relu && value < 0.0f ? 0.0f : value;
  }
}

/* A plane of channel |c|, from element |at| on. */
static void normalize_run(const affine *a, int64_t c, int64_t at, int64_t ahead) {
  const float mean = a->mean[c], factor = a->factor[c], bias = a->bias[c];
  if (a->relu)
    run_as(a->y + at, a->x + at, mean, factor, bias, 1, a->l.inner, ahead);
  else
    run_as(a->y + at, a->x + at, mean, factor, bias, 0, a->l.inner, ahead);
}

/* The planes of channel |c|. */
static void normalize_channel(const affine *a, int64_t c, int64_t ahead) {
  for (int64_t n = 0; n < a->l.batch; n++)
    normalize_run(a, c, (n * a->l.channels + c) * a->l.inner, ahead);
}

/* Rows of the batch for inner == 1, else planes. */
static void normalize_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const affine *a = context;
  int64_t begin, end;
  if (a->l.inner == 1) {
    const int64_t channels = a->l.channels;
    const int relu = a->relu;
    df_task_range(index, count, a->l.batch, 1, &begin, &end);
    for (int64_t n = begin; n < end; n++)
      for (int64_t c = 0; c < channels; c++) {
        const float value = (a->x[n * channels + c] - a->mean[c]) * a->factor[c] + a->bias[c];
        a->y[n * channels + c] = relu && value < 0.0f ? 0.0f : value;
      }
    return;
  }
  df_task_range(index, count, a->l.batch * a->l.channels, 1, &begin, &end);
  for (int64_t plane = begin; plane < end; plane++)
    normalize_run(a, plane % a->l.channels, plane * a->l.inner, 0);
}

static void normalize(const df_call *call, affine *a) {
  int64_t total = a->l.batch * a->l.channels * a->l.inner;
  df_parallel(call, normalize_task, a, df_task_count(call, total, DF_GRAIN));
}

static df_status prepare_inference(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  out->workspace = node->inputs[0]->shape[1] * (int64_t)sizeof(float);
  return DF_OK;
}

static df_status run_inference(const df_call *call) {
  const df_tensor *x = call->inputs[0];
  const float *scale = call->inputs[1]->data, *variance = call->inputs[4]->data;
  double epsilon = df_attr_float(call, DF_BATCH_NORM_EPSILON);
  float *factor = call->workspace;
  affine a = {.y = call->outputs[0]->data,
              .x = x->data,
              .l = df_channels_of(x->shape, x->rank),
              .mean = call->inputs[3]->data,
              .factor = factor,
              .bias = call->inputs[2]->data};
  for (int64_t c = 0; c < a.l.channels; c++)
    factor[c] = (float)(scale[c] / sqrt(variance[c] + epsilon));
  normalize(call, &a);
  return DF_OK;
}

/* Whether a channel has a single partial sum, of planes: a thread then does all that there is to do
 * for it while it is in the cache, and every element comes from far once. */
static int by_channel(const df_statistics *s) { return s->l.inner > 1 && s->partials.count == 1; }

/* From one plane to that of the next channel, when the planes of two channels of |tensors| tensors
 * fit the second cache; else 0. */
static int64_t next_channel(const df_statistics *s, int64_t tensors) {
  return 2 * tensors * s->partials.total <= CACHE_FLOATS ? s->l.inner : 0;
}

/* ---- batch_norm_train ----------------------------------------------------------------------- */

/* The workspace: results of the partials, then mean and factor per channel. */
static df_status prepare_train(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  df_channels l = df_channels_of(node->inputs[0]->shape, node->inputs[0]->rank);
  out->workspace = df_partials_bytes(&l, node->threads) + 2 * l.channels * (int64_t)sizeof(float);
  return DF_OK;
}

/* The running value: what was, times momentum, and the batch's. */
static void blend(const df_tensor *to, const df_tensor *from, int64_t c, double batch,
                  double momentum) {
  if (to->data)
    ((float *)to->data)[c] =
        (float)(((const float *)from->data)[c] * momentum + batch * (1.0 - momentum));
}

typedef struct train {
  const df_call *call;
  df_statistics s;
  affine a;
  float *mean, *factor;
  float *saved_mean, *saved_inv_std; /* may be null */
  double epsilon, momentum;
} train;

/* What follows from the moments of channel |c|. |inv_std| is rounded as it is kept, so that y is
 * the same where it is known. */
static void set_moments(const train *t, int64_t c, double mean, double variance, float inv_std) {
  t->mean[c] = (float)mean;
  t->factor[c] = (float)((double)((const float *)t->call->inputs[1]->data)[c] * inv_std);
  blend(t->call->outputs[1], t->call->inputs[3], c, mean, t->momentum);
  blend(t->call->outputs[2], t->call->inputs[4], c, variance, t->momentum);
  if (t->saved_mean)
    t->saved_mean[c] = (float)mean;
  if (t->saved_inv_std)
    t->saved_inv_std[c] = inv_std;
}

/* Joins the partials of channel |c|; all that is known of it. */
static void finish_moments(const train *t, int64_t c) {
  const df_partials *p = &t->s.partials;
  const double *result = t->s.result + 2 * c * p->count;
  double mean = result[0], deviation = result[1];
  for (int64_t partial = 1; partial < p->count; partial++) {
    double seen = (double)(partial * p->length);
    double count = (double)df_min(p->length, p->total - partial * p->length);
    double delta = result[2 * partial] - mean;
    mean += delta * count / (seen + count);
    deviation += result[2 * partial + 1] + delta * delta * seen * count / (seen + count);
  }
  double variance = deviation / (double)p->total;
  set_moments(t, c, mean, variance, (float)(1.0 / sqrt(variance + t->epsilon)));
}

static void train_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const train *t = context;
  int64_t begin, end, ahead = next_channel(&t->s, 1);
  df_task_range(index, count, t->s.l.channels, 1, &begin, &end);
  for (int64_t c = begin; c < end; c++) {
    DF_NAME(df_moments)(&t->s, c, 0, t->s.partials.total, t->s.result + 2 * c);
    finish_moments(t, c);
    normalize_channel(&t->a, c, ahead);
  }
}

static df_status train_as(const df_call *call, int relu) {
  const df_tensor *x = call->inputs[0];
  df_channels l = df_channels_of(x->shape, x->rank);
  train t = {.call = call,
             .s = {.x = x->data,
                   .l = l,
                   .partials = df_partials_of(&l, call->threads),
                   .result = call->workspace},
             .saved_mean = call->n_outputs > 3 ? call->outputs[3]->data : NULL,
             .saved_inv_std = call->n_outputs > 4 ? call->outputs[4]->data : NULL,
             .epsilon = df_attr_float(call, DF_BATCH_NORM_EPSILON),
             .momentum = df_attr_float(call, DF_BATCH_NORM_TRAIN_MOMENTUM)};
  t.mean = (float *)(t.s.result + 2 * l.channels * t.s.partials.count);
  t.factor = t.mean + l.channels;
  t.a = (affine){.y = call->outputs[0]->data,
                 .x = x->data,
                 .l = l,
                 .mean = t.mean,
                 .factor = t.factor,
                 .bias = call->inputs[2]->data,
                 .relu = relu};
  if (call->n_inputs > 6 && call->inputs[6]->data) { /* the moments are known */
    const float *mean = call->inputs[5]->data, *inv_std = call->inputs[6]->data;
    for (int64_t c = 0; c < l.channels; c++) {
      double variance = 1.0 / ((double)inv_std[c] * inv_std[c]) - t.epsilon;
      set_moments(&t, c, mean[c], variance, inv_std[c]);
    }
    normalize(call, &t.a);
    return DF_OK;
  }
  if (by_channel(&t.s)) {
    int64_t tasks = df_task_count(call, l.channels * t.s.partials.total, DF_GRAIN);
    df_parallel(call, train_task, &t, df_min(tasks, l.channels));
    return DF_OK;
  }
  DF_NAME(df_take_statistics)(call, &t.s);
  for (int64_t c = 0; c < l.channels; c++)
    finish_moments(&t, c);
  normalize(call, &t.a);
  return DF_OK;
}

static df_status run_train(const df_call *call) { return train_as(call, 0); }

static df_status run_train_relu(const df_call *call) { return train_as(call, 1); }

/* ---- batch_norm_train_grad ------------------------------------------------------------------ */

typedef struct backward {
  df_statistics s;
  float *dx;             /* may be null */
  float *dscale, *dbias; /* may be null */
  const float *scale, *inv_std;
  float *factor, *shift, *slope; /* dx = factor * dy + slope * (x - mean) + shift */
} backward;

/* Of channel |c|, as forward has it. */
static double factor_of(const backward *b, int64_t c) {
  return (double)b->scale[c] * b->inv_std[c];
}

static void finish_sums(const backward *b, int64_t c) {
  const df_partials *p = &b->s.partials;
  double plain = 0.0, weighted = 0.0, total = (double)p->total;
  for (int64_t partial = 0; partial < p->count; partial++) {
    plain += b->s.result[2 * (c * p->count + partial)];
    weighted += b->s.result[2 * (c * p->count + partial) + 1];
  }
  weighted *= b->inv_std[c];
  if (b->dbias)
    b->dbias[c] = (float)plain;
  if (b->dscale)
    b->dscale[c] = (float)weighted;
  double all = factor_of(b, c);
  b->slope[c] = (float)(-all * b->inv_std[c] * weighted / total);
  b->shift[c] = (float)(-all * plain / total);
}

static inline __attribute__((always_inline)) void plane_as(const backward *b, int64_t c, int64_t at,
                                                           float bias, int relu, int64_t ahead) {
  const float factor = b->factor[c], slope = b->slope[c], shift = b->shift[c], mean = b->s.mean[c];
  float *dx = b->dx + at;
  const float *dy = b->s.dy + at, *x = b->s.x + at;
  int64_t i = 0, inner = b->s.l.inner;
  for (; i + DF_LANES <= inner; i += DF_LANES) {
    __builtin_prefetch(dy + i + ahead);
    __builtin_prefetch(x + i + ahead);
    df_vec d = vec_load(dy + i), centred = vec_load(x + i) - mean;
    d = relu ? vec_where_positive(centred * factor + bias, d) : d;
    vec_store(dx + i, factor * d + slope * centred + shift);
  }
  for (; i < inner; i++) {
    const float centred = x[i] - mean;
    const float d = !relu || centred * factor + bias > 0.0f ? dy[i] : 0.0f;
    dx[i] = factor * d + slope * centred + shift;
  }
}

/* One plane; fetches what lies |ahead| of it. */
static void backward_plane(const backward *b, int64_t c, int64_t at, int64_t ahead) {
  if (b->s.bias)
    plane_as(b, c, at, b->s.bias[c], 1, ahead);
  else
    plane_as(b, c, at, 0.0f, 0, ahead);
}

/* Rows of the batch for inner == 1, else planes. */
static void backward_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const backward *b = context;
  int64_t begin, end, inner = b->s.l.inner, channels = b->s.l.channels;
  if (inner == 1) {
    const float *bias = b->s.bias;
    df_task_range(index, count, b->s.l.batch, 1, &begin, &end);
    for (int64_t at = begin * channels; at < end * channels; at += channels)
      for (int64_t c = 0; c < channels; c++) {
        const float centred = b->s.x[at + c] - b->s.mean[c];
        const int counts = !bias || centred * b->factor[c] + bias[c] > 0.0f;
        const float d = counts ? b->s.dy[at + c] : 0.0f;
        b->dx[at + c] = b->factor[c] * d + b->slope[c] * centred + b->shift[c];
      }
    return;
  }
  df_task_range(index, count, b->s.l.batch * channels, 1, &begin, &end);
  for (int64_t plane = begin; plane < end; plane++)
    backward_plane(b, plane % channels, plane * inner, 0);
}

static void backward_channels(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const backward *b = context;
  const df_channels *l = &b->s.l;
  int64_t begin, end, ahead = next_channel(&b->s, 2);
  df_task_range(index, count, l->channels, 1, &begin, &end);
  for (int64_t c = begin; c < end; c++) {
    DF_NAME(df_sums)(&b->s, c, 0, b->s.partials.total, b->s.result + 2 * c);
    finish_sums(b, c);
    for (int64_t n = 0; n < l->batch; n++)
      backward_plane(b, c, (n * l->channels + c) * l->inner, ahead);
  }
}

/* The workspace: results of the partials, then factor, slope and shift per channel. */
static df_status prepare_grad(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  df_channels l = df_channels_of(node->inputs[1]->shape, node->inputs[1]->rank);
  out->workspace = df_partials_bytes(&l, node->threads) + 3 * l.channels * (int64_t)sizeof(float);
  return DF_OK;
}

/* |bias|: that before the relu; null without. |mean|: the index of its input. */
static df_status grad_as(const df_call *call, const float *bias, int32_t mean) {
  const df_tensor *x = call->inputs[1];
  df_channels l = df_channels_of(x->shape, x->rank);
  backward b = {.s = {.x = x->data,
                      .dy = call->inputs[0]->data,
                      .mean = call->inputs[mean]->data,
                      .bias = bias,
                      .l = l,
                      .partials = df_partials_of(&l, call->threads),
                      .result = call->workspace},
                .dx = call->outputs[0]->data,
                .dscale = call->n_outputs > 1 ? call->outputs[1]->data : NULL,
                .dbias = call->n_outputs > 2 ? call->outputs[2]->data : NULL,
                .scale = call->inputs[2]->data,
                .inv_std = call->inputs[mean + 1]->data};
  b.factor = (float *)(b.s.result + 2 * l.channels * b.s.partials.count);
  b.slope = b.factor + l.channels;
  b.shift = b.slope + l.channels;
  b.s.factor = b.factor;
  for (int64_t c = 0; c < l.channels; c++) /* the sums read it */
    b.factor[c] = (float)factor_of(&b, c);
  int64_t tasks = df_task_count(call, l.channels * b.s.partials.total, DF_GRAIN);
  if (b.dx && by_channel(&b.s)) {
    df_parallel(call, backward_channels, &b, df_min(tasks, l.channels));
    return DF_OK;
  }
  DF_NAME(df_take_statistics)(call, &b.s);
  for (int64_t c = 0; c < l.channels; c++)
    finish_sums(&b, c);
  if (b.dx)
    df_parallel(call, backward_task, &b, tasks);
  return DF_OK;
}

static df_status run_grad(const df_call *call) { return grad_as(call, NULL, 3); }

static df_status run_relu_grad(const df_call *call) {
  return grad_as(call, call->inputs[3]->data, 4);
}

/* ---- Records -------------------------------------------------------------------------------- */

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
                       .operands = "f32,f32,f32,f32,f32,f32?,f32?->f32,f32,f32,f32?,f32?",
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
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "batch_norm_train_relu",
                       .name = "batch_norm_train_relu f32 " DF_TEXT(DF_ISA),
                       .operands = "f32,f32,f32,f32,f32,f32?,f32?->f32,f32,f32,f32?,f32?",
                       .inplace = "0<0,1<3,2<4",
                       .accepts = accepts,
                       .prepare = prepare_train,
                       .run = run_train_relu},
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "batch_norm_train_relu_grad",
                       .name = "batch_norm_train_relu_grad f32 " DF_TEXT(DF_ISA),
                       .operands = "f32,f32,f32,f32,f32,f32->f32,f32,f32",
                       .inplace = "0<0,0<1",
                       .accepts = accepts_grad,
                       .prepare = prepare_grad,
                       .run = run_relu_grad},
    NULL};
