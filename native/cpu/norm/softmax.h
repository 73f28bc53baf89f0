/* norm/softmax.h: maxima and sums of exponentials along rows and columns, for norm/softmax.c and
 * norm/loss.c. */
#ifndef DF_CPU_NORM_SOFTMAX_H
#define DF_CPU_NORM_SOFTMAX_H
#include "simd/block.h"
#include "simd/vector.h"
#include "simd/vmath.h"

/* Partial sums of a row, whose number does not depend on the instruction set. */
enum { DF_EXP_LANES = 32, DF_EXP_VECTORS = DF_EXP_LANES / DF_LANES };

/* The largest element of a row of n > 0; a NaN may be left out, the exponentials will have it. */
static inline float df_largest_of_row(const float *x, int64_t n) {
  if (n < DF_LANES) {
    float most = x[0];
    for (int64_t i = 1; i < n; i++)
      most = x[i] > most ? x[i] : most;
    return most;
  }
  df_vec most[2] = {vec_load(x), vec_load(x + n - DF_LANES)}; /* some of them for the second time */
  int64_t i = DF_LANES;
  for (; i + 2 * DF_LANES <= n; i += 2 * DF_LANES) {
    most[0] = vec_max(vec_load(x + i), most[0]);
    most[1] = vec_max(vec_load(x + i + DF_LANES), most[1]);
  }
  if (i + DF_LANES <= n)
    most[0] = vec_max(vec_load(x + i), most[0]);
  return vec_largest(vec_max(most[0], most[1]));
}

/* |df_exp_below_zero| of each lane. */
static inline df_vec df_vec_exp_below_zero(df_vec x) {
  const df_vec rounder = vec_splat(DF_ROUNDER + 192.0f);
  x = vec_max(vec_splat(-104.0f), x); /* NaN stays */
  const df_vec shifted = x * vec_splat(0x1.715476p+0f) + rounder;
  const df_vec n = shifted - rounder;
  const df_vec r = (x - n * vec_splat(0x1.62e4p-1f)) - n * vec_splat(0x1.7f7d1cp-20f);
  df_vec p = vec_splat(0x1.6a3fb6p-10f);
  p = p * r + vec_splat(0x1.1239e0p-7f);
  p = p * r + vec_splat(0x1.5558bep-5f);
  p = p * r + vec_splat(0x1.555492p-3f);
  p = p * r + vec_splat(0x1.fffffcp-2f);
  const df_vec y = (p * (r * r) + r) + vec_splat(1.0f);
  return y * (df_vec)((df_uvec)shifted << 23) * vec_splat(0x1p-65f);
}

/* e = e^(x - m) unless |e| is null; returns the sum. Element i is added to lane i % DF_EXP_LANES,
 * in float up to DF_CHUNK elements. |e| may be |x|. */
static inline __attribute__((always_inline)) double df_exp_row(float *e, const float *x, float m,
                                                               int64_t n) {
  const df_vec most = vec_splat(m);
  double total = 0.0;
  for (int64_t begin = 0; begin < n; begin += DF_CHUNK) {
    const int64_t end = df_min(begin + DF_CHUNK, n);
    df_vec sum[DF_EXP_VECTORS];
    for (int v = 0; v < DF_EXP_VECTORS; v++)
      sum[v] = vec_zero();
    int64_t i = begin;
    for (; i + DF_EXP_LANES <= end; i += DF_EXP_LANES) {
#pragma GCC unroll 8
      for (int v = 0; v < DF_EXP_VECTORS; v++) {
        const df_vec y = df_vec_exp_below_zero(vec_load(x + i + v * DF_LANES) - most);
        if (e)
          vec_store(e + i + v * DF_LANES, y);
        sum[v] += y;
      }
    }
    for (int v = 0; i < end; v++, i += DF_LANES) {
      const int64_t some = df_min(DF_LANES, end - i);
      const df_vec y = df_vec_exp_below_zero(vec_load_partial(x + i, some) - most);
      if (e)
        vec_store_partial(e + i, y, some);
      sum[v] += vec_first(y, some);
    }
    for (int half = DF_EXP_VECTORS / 2; half > 0; half /= 2)
      for (int v = 0; v < half; v++)
        sum[v] += sum[v + half];
    total += (double)vec_sum(sum[0]);
  }
  return total;
}

/* Sum of e^(x - m). */
static inline double df_exp_sum_row(const float *x, float m, int64_t n) {
  return df_exp_row(NULL, x, m, n);
}

/* m[j] = max over k of x[k * inner + j], NaN if there is one. */
static inline void df_max_columns(float *m, const float *x, int64_t size, int64_t inner,
                                  int64_t n) {
  for (int64_t j = 0; j < n; j++)
    m[j] = x[j];
  for (int64_t k = 1; k < size; k++) {
    const float *row = x + k * inner;
    DF_IVDEP
    for (int64_t j = 0; j < n; j++)
      m[j] = DF_MAXIMUM(row[j], m[j]);
  }
}

/* sum[j] = sum over k of e^(x[k * inner + j] - m[j]). */
static inline void df_exp_sum_columns(double *sum, const float *x, const float *m, int64_t size,
                                      int64_t inner, int64_t n) {
  for (int64_t j = 0; j < n; j++)
    sum[j] = 0.0;
  for (int64_t k = 0; k < size; k++) {
    const float *row = x + k * inner;
    DF_IVDEP
    for (int64_t j = 0; j < n; j++)
      sum[j] += (double)df_exp_below_zero(row[j] - m[j]);
  }
}

#endif
