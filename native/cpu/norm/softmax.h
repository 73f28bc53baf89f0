/* norm/softmax.h: maxima and sums of exponentials along rows and columns, for norm/softmax.c and
 * norm/loss.c. */
#ifndef DF_CPU_NORM_SOFTMAX_H
#define DF_CPU_NORM_SOFTMAX_H
#include "simd/block.h"
#include "simd/vmath.h"

/* Sum of e^(x - m). */
static inline double df_exp_sum_row(const float *x, float m, int64_t n) {
  float e[DF_CHUNK];
  double sum = 0.0;
  for (int64_t begin = 0; begin < n; begin += DF_CHUNK) {
    const int64_t some = df_min(DF_CHUNK, n - begin);
    for (int64_t i = 0; i < some; i++)
      e[i] = df_exp_below_zero(x[begin + i] - m);
    sum += (double)df_sum_block(e, some);
  }
  return sum;
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
