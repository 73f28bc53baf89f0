/* norm/lrn.c: local response normalisation over channels, (N, C, inner).
 *
 *   scale[c] = bias + alpha / size * sum of x[j]^2 for j in [c - (size - 1) / 2, c + size / 2]
 *   y = x * scale^-beta
 *   dx[c] = dy[c] * scale[c]^-beta - 2 alpha beta / size * x[c] * sum of dy[j] y[j] / scale[j] over
 * the j whose window has c, which are [c - size / 2, c + (size - 1) / 2]
 *
 * A task is a strip of positions, all channels: its window stays in the first cache. 2 to 3 reads
 * or writes per element; scale^-beta is square roots for the beta that models have, else powf. */
#include "real.h"

enum { STRIP = 256 };

typedef struct normalization {
  df_real *y, *scale; /* forward; scale may be null */
  df_real *dx;        /* backward */
  const df_real *dy, *x, *old_y, *old_scale;
  int64_t batch, channels, inner, size;
  df_real factor, beta, bias; /* factor: alpha / size */
} normalization;

/* out = scale^-beta. */
static void inverse_power(df_real *out, const df_real *scale, df_real beta, int64_t count) {
  if (beta == 0.75f) {
    for (int64_t i = 0; i < count; i++) {
      df_real rooted = sqrt(scale[i]);
      out[i] = 1.0f / (rooted * sqrt(rooted));
    }
  } else if (beta == 0.5f) {
    for (int64_t i = 0; i < count; i++)
      out[i] = 1.0f / sqrt(scale[i]);
  } else if (beta == 1.0f) {
    for (int64_t i = 0; i < count; i++)
      out[i] = 1.0f / scale[i];
  } else {
    for (int64_t i = 0; i < count; i++)
      out[i] = pow(scale[i], -beta);
  }
}

/* sum = bias + factor * sum of squares over the window of channel |c|; x: channel 0 of the strip.
 */
static void window_scale(df_real *sum, const normalization *j, const df_real *x, int64_t c,
                         int64_t count) {
  int64_t first = df_max(0, c - (j->size - 1) / 2);
  int64_t last = df_min(j->channels - 1, c + j->size / 2);
  for (int64_t i = 0; i < count; i++)
    sum[i] = 0.0f;
  for (int64_t other = first; other <= last; other++) {
    const df_real *from = x + other * j->inner;
    for (int64_t i = 0; i < count; i++)
      sum[i] += from[i] * from[i];
  }
  for (int64_t i = 0; i < count; i++)
    sum[i] = j->bias + j->factor * sum[i];
}

static void forward_strip(const normalization *j, int64_t at, int64_t count) {
  df_real sum[STRIP], power[STRIP];
  for (int64_t c = 0; c < j->channels; c++) {
    int64_t here = at + c * j->inner;
    window_scale(sum, j, j->x + at, c, count);
    inverse_power(power, sum, j->beta, count);
    DF_ASSUME(j->y);
    for (int64_t i = 0; i < count; i++)
      j->y[here + i] = j->x[here + i] * power[i];
    if (j->scale)
      memcpy(j->scale + here, sum, (size_t)count * sizeof(df_real));
  }
}

static void backward_strip(const normalization *j, int64_t at, int64_t count) {
  df_real sum[STRIP], power[STRIP];
  df_real factor = 2.0f * j->factor * j->beta;
  for (int64_t c = 0; c < j->channels; c++) {
    int64_t first = df_max(0, c - j->size / 2);
    int64_t last = df_min(j->channels - 1, c + (j->size - 1) / 2);
    for (int64_t i = 0; i < count; i++)
      sum[i] = 0.0f;
    for (int64_t other = first; other <= last; other++) {
      int64_t from = at + other * j->inner;
      for (int64_t i = 0; i < count; i++)
        sum[i] += j->dy[from + i] * j->old_y[from + i] / j->old_scale[from + i];
    }
    int64_t here = at + c * j->inner;
    inverse_power(power, j->old_scale + here, j->beta, count);
    for (int64_t i = 0; i < count; i++)
      j->dx[here + i] = j->dy[here + i] * power[i] - factor * j->x[here + i] * sum[i];
  }
}

static void task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const normalization *j = context;
  int64_t strips = df_divide_up(j->inner, STRIP), begin, end;
  df_task_range(index, count, j->batch * strips, 1, &begin, &end);
  for (int64_t strip = begin; strip < end; strip++) {
    int64_t at = strip % strips * STRIP;
    (j->dx ? backward_strip : forward_strip)(j, strip / strips * j->channels * j->inner + at,
                                             df_min(STRIP, j->inner - at));
  }
}

static df_status run(const df_call *call, normalization *j, const df_tensor *x) {
  j->x = x->data;
  j->batch = x->shape[0];
  j->channels = x->shape[1];
  j->inner = df_product(x->shape, 2, x->rank);
  j->size = df_attr_int(call, DF_LRN_SIZE);
  j->factor = (df_real)(df_attr_float(call, DF_LRN_ALPHA) / (double)j->size);
  j->beta = (df_real)df_attr_float(call, DF_LRN_BETA);
  j->bias = (df_real)df_attr_float(call, DF_LRN_BIAS);
  int64_t work = j->batch * j->channels * j->inner * (4 + j->size);
  int64_t strips = j->batch * df_divide_up(j->inner, STRIP);
  df_parallel(call, task, j, df_min(strips, df_task_count(call, work, DF_GRAIN)));
  return DF_OK;
}

static df_status run_forward(const df_call *call) {
  normalization j = {.y = call->outputs[0]->data,
                     .scale = call->n_outputs > 1 ? call->outputs[1]->data : NULL};
  return run(call, &j, call->inputs[0]);
}

static df_status run_backward(const df_call *call) {
  normalization j = {.dx = call->outputs[0]->data,
                     .dy = call->inputs[0]->data,
                     .old_y = call->inputs[2]->data,
                     .old_scale = call->inputs[3]->data};
  return run(call, &j, call->inputs[1]);
}

static const char *accepts(const df_node *node) {
  return node->inputs[0]->rank < 2 ? "x must have a batch and a channel axis" : NULL;
}

DF_REAL_KERNELS(lrn) = {
    DF_KERNEL_IF("lrn", DF_REAL, DF_REAL "->" DF_REAL "," DF_REAL "?", NULL, accepts, run_forward),
    DF_KERNEL_IF("lrn_grad", DF_REAL, DF_REAL "," DF_REAL "," DF_REAL "," DF_REAL "->" DF_REAL,
                 NULL, accepts, run_backward),
    NULL};
