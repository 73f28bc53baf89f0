/* gemm/tile.h: the innermost loop of matrix products.
 *
 * A tile of up to DF_TILE_ROWS x DF_TILE_VECTORS vectors of c lives in registers while k passes:
 * per step one vector of b per column of vectors and one broadcast of a per row. The rows are as
 * many as leave registers for b, so that multiply-adds, not loads, are the limit. */
#ifndef DF_CPU_GEMM_TILE_H
#define DF_CPU_GEMM_TILE_H

#include "gemm/product.h"
#include "simd/vector.h"

#if DF_LANES == 16
#define DF_TILE_ROWS 14
#elif DF_LANES == 8
#define DF_TILE_ROWS 6
#else
#define DF_TILE_ROWS 4
#endif
#define DF_TILE_VECTORS 2
#define DF_TILE_COLUMNS (DF_TILE_VECTORS * DF_LANES)

enum { DF_AHEAD_STEPS = 4 }; /* of k for each row that a tile fetches: as memory can keep up */

/* What is read later, and fetched meanwhile into the second cache: every DF_AHEAD_STEPS steps of k
 * a row of DF_TILE_COLUMNS floats. No more rows than are packed behind the tile: those of later
 * ones lie a power of two apart as often as not, and would drive these and a out of that cache. */
typedef struct df_tile_ahead {
  const char *next;
  int32_t row;  /* bytes from one row to the next */
  int32_t rows; /* 0 for nothing */
} df_tile_ahead;

/* What a tile does beside its sums: to them before they are stored, where a null bias is none, and
 * for the tiles that follow. */
typedef struct df_tile_epilogue {
  const float *row_bias;    /* one per row of c */
  const float *column_bias; /* one per column of c */
  const float *add;         /* like c, added before relu; may be c */
  int32_t accumulate;       /* c is added to, not overwritten */
  float high;               /* see |vec_activate| */
  union {
    df_tile_ahead ahead;
    const float *begun; /* where b is read as it lies, sums of the steps before; null for none */
  };
  union {           /* what a tile reads as it lies, a by rows or b */
    int64_t a_row;  /* distance of two rows of a whose steps lie together */
    int64_t b_step; /* distance of two steps of b */
  };
  int64_t a_step; /* distance of two steps of a whose rows lie together, which may be 0 */
} df_tile_epilogue;

/* That of the tile of |gemm| whose first column is |j|. */
static inline df_tile_epilogue df_tile_epilogue_of(const df_gemm *gemm, int64_t j) {
  const df_gemm_epilogue *from = &gemm->epilogue;
  return (df_tile_epilogue){.column_bias = from->column_bias ? from->column_bias + j : NULL,
                            .accumulate = from->accumulate,
                            .high = from->high};
}

/* c (rows, columns) = a * b (k steps of whole vectors that hold |columns|). */
typedef void (*df_tile)(int64_t k, const float *a, const float *b, float *c, int64_t c_row,
                        int64_t columns, const df_tile_epilogue *epilogue);

/* By number of rows less one and of vectors less one. The rows of a step lie together: a is packed,
 * or read as it lies. Its steps are epilogue->a_step floats apart: DF_TILE_ROWS where it is packed.
 */
extern const df_tile DF_NAME(df_tiles)[DF_TILE_ROWS][DF_TILE_VECTORS];

/* The same where the steps of a row lie together, and rows are epilogue->a_row apart. */
extern const df_tile DF_NAME(df_row_tiles)[DF_TILE_ROWS][DF_TILE_VECTORS];

/* By number of rows less one: a as for df_tiles, DF_TILE_COLUMNS columns of b whose steps are
 * epilogue->b_step apart. Sums go on from epilogue->begun, whose rows are DF_TILE_COLUMNS apart. */
extern const df_tile DF_NAME(df_strided_tiles)[DF_TILE_ROWS];

#endif
