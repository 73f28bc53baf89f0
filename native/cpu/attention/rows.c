/* attention/rows.c: scores to weights, a row at a time while it is in the first cache.
 *
 * Online softmax (Milakov and Gimelshein 2018): a block of columns has its own maximum; what was
 * summed before is multiplied by e^(old maximum - new one). Weights are divided by the sum so far,
 * so that the result after each block is the attention over its columns and those before: nothing
 * overflows that the complete row wouldn't. Per score 3 loads and stores, one of the mask, and an
 * exponential of 16 operations. */
#include "attention/rows.h"
#include "simd/vector.h"
#include "simd/vmath.h"

#include <float.h>
#include <math.h>

static const float LEAST = -87.0f; /* e^x is a normal number from here on */

/* e^x for x <= 0, and 0 below LEAST; NaN stays. As df_exp, with a power of two that needs no
 * halves.
 */
static inline df_vec exp_below_zero(df_vec x) {
  const df_vec from = vec_max(vec_splat(LEAST), x);
  const df_vec shifted = from * vec_splat(0x1.715476p+0f) + vec_splat(DF_ROUNDER);
  const df_vec n = shifted - vec_splat(DF_ROUNDER);
  const df_vec r = (from - n * vec_splat(0x1.62e4p-1f)) - n * vec_splat(0x1.7f7d1cp-20f);
  df_vec p = vec_splat(0x1.6a3fb6p-10f);
  p = p * r + vec_splat(0x1.1239e0p-7f);
  p = p * r + vec_splat(0x1.5558bep-5f);
  p = p * r + vec_splat(0x1.555492p-3f);
  p = p * r + vec_splat(0x1.fffffcp-2f);
  const df_vec power = (df_vec)(((df_uvec)shifted << 23) + 0x3f800000u);
  return vec_unless_below((p * (r * r) + r + vec_splat(1.0f)) * power, x, LEAST);
}

/* s = factor * s + mask, and -infinity behind the row, up to whole vectors; returns the largest, of
 * which a NaN may be left out: the sum will have it. */
static float add_mask(const df_attention_row *row, float factor) {
  const df_vec scale = vec_splat(factor);
  const df_vec same = vec_splat(row->mask && !row->mask_step ? *row->mask : 0.0f);
  const float *mask = row->mask_step ? row->mask : NULL;
  df_vec most = vec_splat(-INFINITY);
  float *s = row->scores;
  int64_t i = 0;
  for (; i + DF_LANES <= row->n; i += DF_LANES) {
    const df_vec t = vec_load(s + i) * scale + (mask ? vec_load(mask + i) : same);
    vec_store(s + i, t);
    most = vec_max(t, most);
  }
  if (i < row->n) {
    const df_vec added = mask ? vec_load_partial(mask + i, row->n - i) : same;
    vec_store(s + i, vec_load(s + i) * scale + added);
    for (int64_t j = row->n; j < i + DF_LANES; j++)
      s[j] = -INFINITY;
    most = vec_max(vec_load(s + i), most);
  }
  return vec_largest(most);
}

static float largest(const df_attention_row *row) {
  df_vec most = vec_splat(-INFINITY);
  float *s = row->scores;
  for (int64_t j = row->n; j % DF_LANES; j++)
    s[j] = -INFINITY;
  for (int64_t i = 0; i < row->n; i += DF_LANES)
    most = vec_max(vec_load(s + i), most);
  return vec_largest(most);
}

/* e = e^(scale * s - most); returns the sum. Alternates between two vectors of sums, so that each
 * adds few. */
static float exponentials(float *s, int64_t n, float scale, float most) {
  const df_vec factor = vec_splat(scale), base = vec_splat(most);
  df_vec sum[2] = {vec_zero(), vec_zero()};
  int64_t i = 0;
  for (; i + DF_LANES < n; i += 2 * DF_LANES) {
    const df_vec e = exp_below_zero(vec_load(s + i) * factor - base);
    const df_vec f = exp_below_zero(vec_load(s + i + DF_LANES) * factor - base);
    vec_store(s + i, e);
    vec_store(s + i + DF_LANES, f);
    sum[0] += e;
    sum[1] += f;
  }
  if (i < n) {
    const df_vec e = exp_below_zero(vec_load(s + i) * factor - base);
    vec_store(s + i, e);
    sum[0] += e;
  }
  return vec_sum(sum[0] + sum[1]);
}

/* s = cap * tanh(scale * s / cap), and the derivatives where they are wanted. */
static void cap_scores(const df_attention_row *row) {
  const float inner = row->scale / row->cap;
  float *s = row->scores;
  for (int64_t i = 0; i < row->n; i++)
    s[i] = df_tanh(s[i] * inner);
  for (int64_t i = 0; row->slopes && i < row->n; i++)
    row->slopes[i] = row->scale * (1.0f - s[i] * s[i]);
  for (int64_t i = 0; i < row->n; i++)
    s[i] *= row->cap;
}

float DF_NAME(df_attention_weights)(const df_attention_row *row, df_attention_sum *sum, int last) {
  float *s = row->scores;
  float scale = row->scale, most;
  if (row->cap > 0.0f) {
    cap_scores(row);
    scale = 1.0f;
  }
  if (row->mask || !(scale > 0.0f)) {
    most = add_mask(row, scale);
    scale = 1.0f;
  } else {
    most = largest(row) * scale; /* rounding keeps the order */
  }
  const float before = sum->most;
  most = before > most ? before : most;
  const float base = most == -INFINITY && !last ? 0.0f : most;
  const double carried = sum->sum == 0.0 ? 0.0 : sum->sum * (double)df_exp(before - base);
  sum->sum = carried + (double)exponentials(s, row->n, scale, base);
  sum->most = most;
  const double inverse = sum->sum == 0.0 ? 0.0 : 1.0 / sum->sum;
  const float factor = (float)inverse;
  for (int64_t i = 0; i < row->n; i++)
    s[i] *= factor;
  return (float)(carried * inverse);
}

/* Whether weights of e^(s - logsum) sum to 1 but for the rounding of logsum and of the scores. */
static int sums_to_one(float sum, float logsum) {
  if (fabsf(logsum) > DF_ATTENTION_INEXACT)
    return sum > 0.0f && sum <= FLT_MAX;
  return fabsf(sum - 1.0f) <= fminf(0.5f, 0x1p-18f * (16.0f + fabsf(logsum)));
}

df_attention_mean DF_NAME(df_attention_reweigh)(const df_attention_row *row, const float *ds,
                                                float logsum, int safe) {
  if (row->cap > 0.0f)
    cap_scores(row);
  const df_vec scale = vec_splat(row->cap > 0.0f ? 1.0f : row->scale), base = vec_splat(logsum);
  const df_vec same = vec_splat(row->mask && !row->mask_step ? *row->mask : 0.0f);
  const float *mask = row->mask_step ? row->mask : NULL;
  float *s = row->scores;
  df_vec sums = vec_zero(), weighted = vec_zero();
  for (int64_t i = 0; i < row->n; i += DF_LANES) { /* behind the row is space for whole vectors */
    const int64_t some = df_min(DF_LANES, row->n - i);
    const df_vec added = mask ? vec_load_partial(mask + i, some) : same;
    const df_vec x = vec_load(s + i) * scale + added - base;
    df_vec p = exp_below_zero(-vec_max(vec_splat(LEAST), -x)); /* rounding may leave x > 0 */
    if (safe)
      p = vec_max(p, vec_zero()); /* which leaves a NaN out */
    vec_store(s + i, p);
    if (some < DF_LANES)
      p = vec_load_partial(s + i, some);
    sums += p;
    weighted += p * vec_load_partial(ds + i, some);
  }
  const float sum = vec_sum(sums);
  if (!sums_to_one(sum, logsum))
    return (df_attention_mean){.factor = 1.0f};
  return (df_attention_mean){.factor = 1.0f / sum, .delta = vec_sum(weighted) / sum, .known = 1};
}

void DF_NAME(df_attention_errors)(const df_attention_row *row, float *ds, df_attention_mean mean) {
  const df_vec scale = vec_splat(row->scale), factor = vec_splat(mean.factor);
  const df_vec delta = vec_splat(mean.delta);
  float *s = row->scores;
  for (int64_t i = 0; i < row->n; i += DF_LANES) {
    const df_vec p = vec_load(s + i) * factor;
    vec_store(s + i, p);
    const df_vec slope = row->slopes ? vec_load(row->slopes + i) : scale;
    vec_store(ds + i, p * (vec_load(ds + i) - delta) * slope);
  }
}

float DF_NAME(df_attention_dot)(const float *x, int64_t x_step, const float *y, int64_t y_step,
                                int64_t n) {
  df_vec sum = vec_zero();
  float rest = 0.0f;
  int64_t i = 0;
  if (x_step == 1 && y_step == 1)
    for (; i + DF_LANES <= n; i += DF_LANES)
      sum += vec_load(x + i) * vec_load(y + i);
  for (; i < n; i++)
    rest += x[i * x_step] * y[i * y_step];
  return vec_sum(sum) + rest;
}

float DF_NAME(df_attention_logsum)(const df_attention_sum *sum) {
  return sum->most + (float)log(sum->sum);
}
