/* attention.h: what the kernels of attention share: how operands lie, and rows of scores.
 *
 * Per batch entry: s = scale * q kt + mask, p = softmax(s) along rows, y = p v, with q (m, d),
 * kt (d, n), v (n, e), mask that broadcasts to (m, n). */
#ifndef DF_CPU_ATTENTION_H
#define DF_CPU_ATTENTION_H

#include "cpu.h"

/* The matrices of an operand: where that of a batch entry begins, and its two strides. */
typedef struct df_matrices {
  const int64_t *shape, *strides;
  int32_t rank;
  int64_t row, column; /* 0 where an axis of size 1 serves all */
} df_matrices;

/* The scores of a row of a block of columns. */
typedef struct df_attention_row {
  float *scores;
  int64_t n;
  float scale;
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

/* Scores -> weights e^(s - logsum), and |ds|, in which their gradients stand, -> the gradients of
 * what the scores were before they were scaled: scale * weight * (ds - delta). */
void DF_NAME(df_attention_errors)(const df_attention_row *row, float *ds, float logsum,
                                  float delta);

/* Sum of x[i * x_step] y[i * y_step]. */
float DF_NAME(df_attention_dot)(const float *x, int64_t x_step, const float *y, int64_t y_step,
                                int64_t n);

/* maximum + log sum. */
float DF_NAME(df_attention_logsum)(const df_attention_sum *sum);

static inline df_matrices df_matrices_of(const int64_t *shape, const int64_t *strides,
                                         int32_t rank) {
  df_matrices x = {shape, strides, rank, 0, 0};
  if (rank >= 1 && shape[rank - 1] != 1)
    x.column = strides[rank - 1];
  if (rank >= 2 && shape[rank - 2] != 1)
    x.row = strides[rank - 2];
  return x;
}

/* Elements from the start of x to its matrix number |index| of a batch of shape |lead|. */
static inline int64_t df_matrix_offset(const df_matrices *x, const int64_t *lead, int32_t n_lead,
                                       int64_t index) {
  int64_t offset = 0;
  for (int32_t back = 1; back <= n_lead; back++) {
    int64_t size = lead[n_lead - back];
    int32_t axis = x->rank - 2 - back;
    if (axis >= 0 && x->shape[axis] != 1)
      offset += index % size * x->strides[axis];
    index /= size;
  }
  return offset;
}

/* Gives a row its mask, from |from| on with |step| between elements; |room| for n floats where they
 * don't lie together. */
static inline void df_attention_mask(df_attention_row *row, const float *from, int64_t step,
                                     float *room) {
  row->mask = from;
  row->mask_step = step != 0;
  if (step == 0 || step == 1)
    return;
  for (int64_t j = 0; j < row->n; j++)
    room[j] = from[j * step];
  row->mask = room;
}

#endif
