/* attention/rows.h: rows of scores of attention, and the weights that they become. */
#ifndef DF_CPU_ATTENTION_ROWS_H
#define DF_CPU_ATTENTION_ROWS_H

#include "cpu.h"

/* The scores of a row of a block of columns. */
typedef struct df_attention_row {
  float *scores;
  int64_t n;
  float scale;
  float cap;         /* above 0: scores are cap * tanh(scale * s / cap) before the mask */
  float *slopes;     /* null, or what the derivatives of capped scores become: n floats */
  const float *mask; /* null for none */
  int64_t mask_step; /* 0 or 1 */
} df_attention_row;

/* A row's maximum and its sum of e^(s - maximum) over the blocks so far; before the first one
 * -infinity and 0. */
typedef struct df_attention_sum {
  double sum;
  float most;
} df_attention_sum;

/* Scores -> weights, normalized over all blocks up to this one. Returns by what the results of the
 * blocks before are to be multiplied. A row that is -infinity throughout gives NaN, as softmax
 * does, with its last block. */
float DF_NAME(df_attention_weights)(const df_attention_row *row, df_attention_sum *sum, int last);

/* Beyond it float32 leaves too little of the logarithm in a log-sum, as where the least number is
 * on all of a row. */
#define DF_ATTENTION_INEXACT 256.0f

/* What the weights e^(s - logsum) of a row are multiplied by, and the mean of their gradients. */
typedef struct df_attention_mean {
  float factor, delta;
  int known; /* delta */
} df_attention_mean;

/* Scores -> weights e^(s - logsum); |ds| are their gradients. Where the weights sum to 1 but for
 * rounding, or the log-sum is inexact, they are to be divided by their sum, and delta is the mean
 * of |ds| by them: then the error of weights is that of scores, not of logsum, and what all of |ds|
 * have in common cancels. |safe|: a weight that is NaN is 0. */
df_attention_mean DF_NAME(df_attention_reweigh)(const df_attention_row *row, const float *ds,
                                                float logsum, int safe);

/* Weights and |ds|, in which their gradients stand, -> weights times the factor, and the gradients
 * of what the scores were before they were scaled and capped: scale, or the slope, * weight *
 * (ds - delta). */
void DF_NAME(df_attention_errors)(const df_attention_row *row, float *ds, df_attention_mean mean);

/* Sum of x[i * x_step] y[i * y_step]. */
float DF_NAME(df_attention_dot)(const float *x, int64_t x_step, const float *y, int64_t y_step,
                                int64_t n);

/* maximum + log sum. */
float DF_NAME(df_attention_logsum)(const df_attention_sum *sum);

/* Gives a row its mask, from |from| on with |step| between elements; |buffer| for n floats where
 * they don't lie together. */
static inline void df_attention_mask(df_attention_row *row, const float *from, int64_t step,
                                     float *buffer) {
  row->mask = from;
  row->mask_step = step != 0;
  if (step == 0 || step == 1)
    return;
  for (int64_t j = 0; j < row->n; j++)
    buffer[j] = from[j * step];
  row->mask = buffer;
}

#endif
