/* norm/channel_statistics.c: runs of one channel, and partial sums over them. */
#include "norm/channel_statistics.h"
#include "simd/vector.h"

/* ---- Runs of one channel -------------------------------------------------------------------- */

/* Element |at| of channel |c|, counted over batch and inner. */
static int64_t offset_of(const df_channels *l, int64_t c, int64_t at) {
  return (at / l->inner * l->channels + c) * l->inner + at % l->inner;
}

/* |count| elements of channel |c| from element |at| on: where they lie when they lie together, else
 * in |buffer|. */
static const float *run_of(const float *x, const df_channels *l, int64_t c, int64_t at,
                           int64_t count, float *buffer) {
  if (at % l->inner + count <= l->inner)
    return x + offset_of(l, c, at);
  if (l->inner == 1) {
    const float *from = x + at * l->channels + c;
    for (int64_t i = 0; i < count; i++)
      buffer[i] = from[i * l->channels];
    return buffer;
  }
  for (int64_t i = 0; i < count;) {
    int64_t length = df_min(count - i, l->inner - (at + i) % l->inner);
    memcpy(buffer + i, x + offset_of(l, c, at + i), (size_t)length * sizeof(float));
    i += length;
  }
  return buffer;
}

/* How many elements the run at |at| has: whole planes when they are small, slices of one when it
 * is large. */
static int64_t run_length(const df_channels *l, int64_t at, int64_t total) {
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
    sum[0] += vec_load_partial(x + i, df_min(DF_LANES, count - i));
  return vec_sum(sum[0] + sum[1]);
}

/* Sum of (x - mean) squared. */
static float deviation_run(const float *x, float mean, int64_t count) {
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

/* Sums of dy and of dy * (x - mean); where |relu|, of dy where (x - mean) * factor + bias > 0. */
static inline __attribute__((always_inline)) void sums_of(const float *dy, const float *x,
                                                          float mean, float factor, float bias,
                                                          int relu, int64_t count, double *plain,
                                                          double *weighted) {
  df_vec sum = vec_zero(), product = vec_zero();
  int64_t i = 0;
  for (; i + DF_LANES <= count; i += DF_LANES) {
    df_vec d = vec_load(dy + i), centred = vec_load(x + i) - mean;
    d = relu ? vec_where_positive(centred * factor + bias, d) : d;
    sum += d;
    product += d * centred;
  }
  float sum_rest = vec_sum(sum), product_rest = vec_sum(product);
  for (; i < count; i++) {
    const float centred = x[i] - mean;
    const float d = !relu || centred * factor + bias > 0.0f ? dy[i] : 0.0f;
    sum_rest += d;
    product_rest += d * centred;
  }
  *plain += sum_rest;
  *weighted += product_rest;
}

static void sums_run(const df_statistics *s, int64_t c, const float *dy, const float *x,
                     int64_t count, double *result) {
  if (s->bias)
    sums_of(dy, x, s->mean[c], s->factor[c], s->bias[c], 1, count, result, result + 1);
  else
    sums_of(dy, x, s->mean[c], 0.0f, 0.0f, 0, count, result, result + 1);
}

/* The runs are joined by Chan's formula. */
void DF_NAME(df_moments)(const df_statistics *s, int64_t c, int64_t begin, int64_t end,
                         double *result) {
  float buffer[DF_CHUNK];
  double mean = 0.0, deviation = 0.0;
  for (int64_t at = begin; at < end;) {
    int64_t count = run_length(&s->l, at, end);
    const float *x = run_of(s->x, &s->l, c, at, count, buffer);
    float run_mean = sum_run(x, count) / (float)count;
    double run_deviation = deviation_run(x, run_mean, count);
    double seen = (double)(at - begin), all = seen + (double)count, delta = run_mean - mean;
    mean += delta * (double)count / all;
    deviation += run_deviation + delta * delta * seen * (double)count / all;
    at += count;
  }
  result[0] = mean;
  result[1] = deviation;
}

void DF_NAME(df_sums)(const df_statistics *s, int64_t c, int64_t begin, int64_t end,
                      double *result) {
  float x_buffer[DF_CHUNK], dy_buffer[DF_CHUNK];
  result[0] = result[1] = 0.0;
  for (int64_t at = begin; at < end;) {
    int64_t count = run_length(&s->l, at, end);
    sums_run(s, c, run_of(s->dy, &s->l, c, at, count, dy_buffer),
             run_of(s->x, &s->l, c, at, count, x_buffer), count, result);
    at += count;
  }
}

static void statistics_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const df_statistics *s = context;
  int64_t begin, end;
  df_task_range(index, count, s->l.channels * s->partials.count, 1, &begin, &end);
  for (int64_t at = begin; at < end; at++) {
    int64_t from = at % s->partials.count * s->partials.length;
    int64_t to = df_min(s->partials.total, from + s->partials.length);
    (s->dy ? DF_NAME(df_sums) : DF_NAME(df_moments))(s, at / s->partials.count, from, to,
                                                     s->result + 2 * at);
  }
}

void DF_NAME(df_take_statistics)(const df_call *call, const df_statistics *s) {
  int64_t tasks = df_task_count(call, s->l.channels * s->partials.total, DF_GRAIN);
  df_parallel(call, statistics_task, (void *)s, df_min(tasks, s->l.channels * s->partials.count));
}
