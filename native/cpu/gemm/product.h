/* gemm/product.h: a product of two float matrices, and how it is split.
 *
 *   c[i][j] = relu(sum over p of a[i][p] * b[p][j] + row_bias[i] + column_bias[j] (+ c[i][j]))
 *
 * a: (m, k) and b: (k, n) with any strides, c: (m, n) with contiguous rows. b may have 16 bits, or
 * be a weight that is quantized in blocks (gemm/blocks.h): its elements become float32 where they
 * are packed, or loaded by a product with few rows. */
#ifndef DF_CPU_GEMM_PRODUCT_H
#define DF_CPU_GEMM_PRODUCT_H

#include "cpu.h"

/* What is read later, and fetched meanwhile into the second cache: every DF_AHEAD_STEPS steps of k
 * a row of DF_TILE_COLUMNS floats. */
typedef struct df_gemm_ahead {
  const char *next; /* null for nothing */
  int64_t row;      /* bytes from one row to the next */
} df_gemm_ahead;

/* What a tile does beside its sums: to them before they are stored, where a null bias is none, and
 * for the tiles that follow. */
typedef struct df_gemm_epilogue {
  const float *row_bias;    /* one per row of c */
  const float *column_bias; /* one per column of c */
  const float *add;         /* like c, added before relu; may be c */
  int32_t accumulate;       /* c is added to, not overwritten */
  float high;               /* see |vec_activate| */
  union {
    df_gemm_ahead ahead;
    const float *begun; /* where b is read as it lies, sums of the steps before; null for none */
  };
  union {           /* what a tile reads as it lies, a by rows or b */
    int64_t a_row;  /* distance of two rows of a whose steps lie together */
    int64_t b_step; /* distance of two steps of b */
  };
  int64_t a_step; /* distance of two steps of a whose rows lie together, which may be 0 */
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
