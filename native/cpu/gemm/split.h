/* gemm/split.h: a product split by rows, columns or steps gives smaller products. */
#ifndef DF_CPU_GEMM_SPLIT_H
#define DF_CPU_GEMM_SPLIT_H

#include "gemm/product.h"

/* The product of columns [j, j + columns) of |gemm|. */
static inline df_gemm df_gemm_columns(const df_gemm *gemm, int64_t j, int64_t columns) {
  df_gemm split = *gemm;
  split.n = columns;
  df_gemm_advance_b(&split, j * gemm->b_col);
  split.c += j;
  if (split.epilogue.column_bias)
    split.epilogue.column_bias += j;
  return split;
}

static inline df_gemm df_gemm_rows(const df_gemm *gemm, int64_t i, int64_t rows) {
  df_gemm split = *gemm;
  split.m = rows;
  split.a += i * gemm->a_row;
  split.c += i * gemm->c_row;
  return split;
}

/* Leaves steps [p, p + k): the first may overwrite c, the last adds the biases. */
static inline void df_gemm_steps(df_gemm *gemm, int64_t p, int64_t k) {
  df_gemm_epilogue epilogue = {.accumulate = gemm->epilogue.accumulate || p > 0};
  if (p + k >= gemm->k) {
    epilogue = gemm->epilogue;
    epilogue.accumulate |= p > 0;
  }
  gemm->a += p * gemm->a_col;
  df_gemm_advance_b(gemm, p * gemm->b_row);
  gemm->k = k;
  gemm->epilogue = epilogue;
}

#endif
