/* gemm/product.h: a product of two float matrices, and how it is split.
 *
 *   c[i][j] = relu(sum over p of a[i][p] * b[p][j] + column_bias[j] (+ c[i][j]))
 *
 * a: (m, k) and b: (k, n) with any strides, c: (m, n) with contiguous rows. b may have 16 bits, or
 * be a weight that is quantized in blocks (gemm/blocks.h): its elements become float32 where they
 * are packed, or loaded by a product with few rows. */
#ifndef DF_CPU_GEMM_PRODUCT_H
#define DF_CPU_GEMM_PRODUCT_H

#include "cpu.h"

/* What a product does beside its sums: to them before they are stored. What is like c in both
 * directions is of tiles alone (gemm/tile.h). */
typedef struct df_gemm_epilogue {
  const float *column_bias; /* one per column of c; null for none */
  int32_t accumulate;       /* c is added to, not overwritten */
  float high;               /* see |vec_activate| */
} df_gemm_epilogue;

typedef struct df_gemm {
  float *c;
  const float *a;
  const float *b;
  const uint16_t *b16;                  /* b in 16 bits, where it is that; else null */
  int32_t b16_dtype;                    /* DF_FLOAT16 or DF_BFLOAT16 */
  const struct df_block_weight *blocks; /* b quantized in blocks, where it is that; else null */
  int64_t b_at; /* the element of the weight that is the first of b; b_row and b_col count so too */
  int64_t m, n, k;
  int64_t c_row; /* distance of two rows of c, in elements */
  int64_t a_row, a_col;
  int64_t b_row, b_col;
  df_gemm_epilogue epilogue;
  const void
      *prepacked; /* what df_gemm_prepack made of all of b, which is not read then; may be null */
} df_gemm;

/* Element |at| of b. */
static inline const void *df_gemm_b(const df_gemm *gemm, int64_t at) {
  return gemm->b16 ? (const void *)(gemm->b16 + at) : gemm->b + at;
}

static inline int32_t df_gemm_b_dtype(const df_gemm *gemm) {
  return gemm->b16 ? gemm->b16_dtype : DF_FLOAT32;
}

/* Makes element |at| of b its first one; b may have no memory. */
static inline void df_gemm_advance_b(df_gemm *gemm, int64_t at) {
  if (gemm->blocks)
    gemm->b_at += at;
  else if (gemm->b16)
    gemm->b16 += at;
  else
    gemm->b += at;
}

/* How a product is split into tasks: |down| x |across| of at most |rows| x |columns|. Depends on
 * sizes and on the number of threads only. */
typedef struct df_gemm_split {
  int64_t rows, columns;
  int64_t down, across;
  int64_t scratch; /* floats that a task needs, a multiple of 16 */
  int32_t terms;   /* bfloat16 terms of each operand, for AMX tiles; 0: float32 */
} df_gemm_split;

#endif
