/* gemm/amx/tile.h: the innermost loop of products on AMX tiles.
 *
 * Two tiles of a and two of b, each of 16 lanes x 32 steps in up to three terms, give four tiles of
 * sums that stay in tile registers while k passes. Per block of steps and term that is 4 loads of 1
 * KiB, 8 cycles each from the first cache, to 4 products of 16 cycles; more terms load less than
 * that.
 */
#ifndef DF_CPU_GEMM_AMX_TILE_H
#define DF_CPU_GEMM_AMX_TILE_H

#include "gemm/amx/pack.h"
#include "gemm/tile.h"

/* One factor: block s of its steps begins at data + (offsets ? offsets[s] : s * block), in it are
 * tiles |tile| words apart, each of terms |term| words apart, of rows |row| words apart. */
typedef struct df_amx_factor {
  const uint16_t *data;
  const int32_t *offsets;
  int64_t block, tile, term, row;
} df_amx_factor;

/* A panel as df_amx_pack makes it. */
static inline df_amx_factor df_amx_packed(const uint16_t *data, int terms) {
  return (df_amx_factor){data,         NULL, 2 * terms * DF_AMX_WORDS, terms * DF_AMX_WORDS,
                         DF_AMX_WORDS, 32};
}

/* A whole panel of b, whose lanes lie together, that is packed while others are multiplied, some
 * rows of tiles with each block: memory has time. */
typedef struct df_amx_later {
  const float *from;
  int64_t row;  /* from one step to the next */
  int64_t next; /* floats to the panel behind, which memory is asked for */
  uint16_t *out;
  int64_t done, rows;
  int64_t count; /* rows that go with a block */
  uint32_t largest[16] __attribute__((aligned(64)));
} df_amx_later;

/* sums[32][32] (64-byte aligned) = a b for |blocks| of steps, of which |rows| x |columns| are
 * wanted and whole tiles written. One factor comes from the first cache, the other passes from
 * further away: a if |a_passes|. |later|, of b, may be null. The tiles must be open. */
void DF_NAME(df_amx_multiply)(float *sums, const df_amx_factor *a, const df_amx_factor *b,
                              int64_t blocks, int terms, int64_t rows, int64_t columns,
                              int a_passes, df_amx_later *later);

/* Writes sums to c as |end| says; its biases are those of the first row and column. */
void DF_NAME(df_amx_epilogue)(float *c, int64_t c_row, const float *sums, int64_t rows,
                              int64_t columns, const df_tile_epilogue *epilogue);

/* Configures the tiles for the calling thread, and releases them. */
void DF_NAME(df_amx_open)(void);
void DF_NAME(df_amx_close)(void);

#endif
