/* gemm/thin.h: products with few rows, which read b once and where it lies. */
#ifndef DF_CPU_GEMM_THIN_H
#define DF_CPU_GEMM_THIN_H

#include "gemm/product.h"

/* Whether a product of these sizes and distances is one. */
int DF_NAME(df_thin_takes)(int64_t m, int64_t a_col, int64_t b_row, int64_t b_col);

/* Columns [begin, end) of the product, on this thread; otherwise as the next one. */
void DF_NAME(df_thin_columns)(const df_gemm *gemm, int64_t begin, int64_t end);

/* Floats of workspace that |df_thin_run| needs. */
int64_t DF_NAME(df_thin_floats)(int64_t m, int64_t n, int64_t k, int64_t b_col);

/* The whole product, with what gemm->epilogue says except accumulation. */
void DF_NAME(df_thin_run)(const df_call *call, const df_gemm *gemm);

#endif
