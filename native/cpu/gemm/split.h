/* gemm/split.h: parts of a product, which are products. */
#ifndef DF_CPU_GEMM_SPLIT_H
#define DF_CPU_GEMM_SPLIT_H

#include "gemm/product.h"

/* The part of |gemm| in columns [j, j + columns). */
static inline df_gemm df_gemm_columns(const df_gemm *gemm, int64_t j, int64_t columns) {
  df_gemm part = *gemm;
  part.n = columns;
  part.b += j * gemm->b_col;
  part.c += j;
  if (part.end.column_bias)
    part.end.column_bias += j;
  if (part.end.add)
    part.end.add += j;
  return part;
}

static inline df_gemm df_gemm_rows(const df_gemm *gemm, int64_t i, int64_t rows) {
  df_gemm part = *gemm;
  part.m = rows;
  part.a += i * gemm->a_row;
  part.c += i * gemm->c_row;
  if (part.end.row_bias)
    part.end.row_bias += i;
  if (part.end.add)
    part.end.add += i * gemm->c_row;
  return part;
}

/* Leaves steps [p, p + k): the first may overwrite c, the last adds the biases. */
static inline void df_gemm_steps(df_gemm *gemm, int64_t p, int64_t k) {
  df_gemm_end end = {.accumulate = gemm->end.accumulate || p > 0};
  if (p + k >= gemm->k) {
    end = gemm->end;
    end.accumulate |= p > 0;
  }
  gemm->a += p * gemm->a_col;
  gemm->b += p * gemm->b_row;
  gemm->k = k;
  gemm->end = end;
}

#endif
