/* attention/matrix.h: the matrices in the operands of attention, and products of them.
 *
 * Per batch entry: s = scale * q kt + mask, p = softmax(s) along rows, y = p v, with q (m, d),
 * kt (d, n), v (n, e), mask that broadcasts to (m, n). */
#ifndef DF_CPU_ATTENTION_MATRIX_H
#define DF_CPU_ATTENTION_MATRIX_H

#include "gemm/gemm.h"

/* The matrices of an operand: where that of a batch entry begins, and its two strides. */
typedef struct df_matrices {
  const int64_t *shape, *strides;
  int32_t rank;
  int64_t row, column; /* 0 where an axis of size 1 serves all */
} df_matrices;

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

/* A matrix of an operand, or its transpose. */
typedef struct df_matrix {
  const float *at;
  int64_t row, column;
} df_matrix;

static inline df_matrix df_matrix_of(const float *base, const df_matrices *x, const int64_t *lead,
                                     int32_t n_lead, int64_t index) {
  return (df_matrix){base + df_matrix_offset(x, lead, n_lead, index), x->row, x->column};
}

/* The submatrix that begins at a row and a column. */
static inline df_matrix df_matrix_from(df_matrix x, int64_t row, int64_t column) {
  x.at += row * x.row + column * x.column;
  return x;
}

static inline df_matrix df_matrix_transposed(df_matrix x) {
  return (df_matrix){x.at, x.column, x.row};
}

/* The split of a product on one thread; one without results has no tasks. */
static inline df_gemm_split df_matrix_split(int64_t m, int64_t n, int64_t k, int32_t precision) {
  return m && n ? DF_NAME(df_gemm_split_for)(m, n, k, 1, 1, precision) : (df_gemm_split){0};
}

/* c (m, n) = or += a (m, k) b (k, n), by the split of a product at least as large. */
static inline void df_matrix_multiply(float *c, int64_t c_row, df_matrix a, df_matrix b, int64_t m,
                                      int64_t n, int64_t k, int32_t accumulate,
                                      const df_gemm_split *split, float *scratch) {
  const df_gemm gemm = {.c = c,
                        .a = a.at,
                        .b = b.at,
                        .m = m,
                        .n = n,
                        .k = k,
                        .c_row = c_row,
                        .a_row = a.row,
                        .a_col = a.column,
                        .b_row = b.row,
                        .b_col = b.column,
                        .epilogue = {.accumulate = accumulate}};
  if (!m || !n)
    return;
  for (int64_t i = 0; i < df_divide_up(m, split->rows); i++)
    for (int64_t j = 0; j < df_divide_up(n, split->columns); j++)
      DF_NAME(df_gemm_task)(&gemm, split, i * split->across + j, scratch);
}

#endif
