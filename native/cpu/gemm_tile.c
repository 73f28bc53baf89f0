/* gemm_tile.c: one function per height and width of a tile, all from one inlined loop. */
#include "gemm_tile.h"

#define TILE_INLINE static inline __attribute__((always_inline))

/* All sums of a tile, unrolled; |i| is the row and |j| the vector. */
#define FOR_EACH                                                                                   \
  _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)                                          \
      _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++)

/* Vector |j| of a row of |vectors|, the last of which has |last| lanes. */
TILE_INLINE df_vec part_load(const float *row, int j, int vectors, int64_t last) {
  if (j < vectors - 1 || last == DF_LANES)
    return vec_load(row + j * DF_LANES);
  return vec_load_part(row + j * DF_LANES, last);
}

/* One step of k. |rows| and |vectors| are constants at every use: the loops over them vanish, and
 * |sum| is registers. */
TILE_INLINE void add_step(int rows, int vectors, const float *a, const float *b,
                          df_vec sum[DF_TILE_ROWS][DF_TILE_VECTORS]) {
  df_vec right[DF_TILE_VECTORS];
#pragma GCC unroll 4
  for (int j = 0; j < vectors; j++)
    right[j] = vec_load(b + j * DF_LANES);
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++) {
    df_vec left = vec_splat(a[i]);
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++)
      sum[i][j] += left * right[j];
  }
}

TILE_INLINE void tile(int rows, int vectors, int64_t k, const float *a, const float *b, float *c,
                      int64_t c_row, int64_t columns, const df_gemm_end *end) {
  df_vec sum[DF_TILE_ROWS][DF_TILE_VECTORS];
  FOR_EACH sum[i][j] = vec_zero();
  int64_t p = 0;
  if (end->ahead.next) {
    const float *next = end->ahead.next;
    for (; p + DF_AHEAD_STEPS <= k; p += DF_AHEAD_STEPS, next += end->ahead.row) {
#pragma GCC unroll 4
      for (int s = 0; s < DF_AHEAD_STEPS; s++, a += DF_TILE_ROWS, b += vectors * DF_LANES) {
        if (s % (DF_AHEAD_STEPS / DF_TILE_VECTORS) == 0)
          __builtin_prefetch(next + s / (DF_AHEAD_STEPS / DF_TILE_VECTORS) * DF_LANES, 0, 2);
        add_step(rows, vectors, a, b, sum);
      }
    }
  }
  for (; p < k; p++, a += DF_TILE_ROWS, b += vectors * DF_LANES)
    add_step(rows, vectors, a, b, sum);
  /* Only the last vector of a row can be partly outside. */
  int64_t last = columns - (vectors - 1) * DF_LANES;
  if (end->accumulate) {
    FOR_EACH sum[i][j] += part_load(c + i * c_row, j, vectors, last);
  }
  if (end->add) {
    FOR_EACH sum[i][j] += part_load(end->add + i * c_row, j, vectors, last);
  }
  if (end->row_bias) {
    FOR_EACH sum[i][j] += vec_splat(end->row_bias[i]);
  }
  if (end->column_bias) {
    FOR_EACH sum[i][j] += part_load(end->column_bias, j, vectors, last);
  }
  if (end->relu) {
    FOR_EACH sum[i][j] = vec_relu(sum[i][j]);
  }
  if (last == DF_LANES) {
    FOR_EACH vec_store(c + i * c_row + j * DF_LANES, sum[i][j]);
  } else {
    FOR_EACH if (j < vectors - 1) vec_store(c + i * c_row + j * DF_LANES, sum[i][j]);
    else vec_store_part(c + i * c_row + j * DF_LANES, sum[i][j], last);
  }
}

#define TILE(rows, vectors)                                                                        \
  static void tile_##rows##_##vectors(int64_t k, const float *a, const float *b, float *c,         \
                                      int64_t c_row, int64_t columns, const df_gemm_end *end) {    \
    tile(rows, vectors, k, a, b, c, c_row, columns, end);                                          \
  }
#define TILES(rows) TILE(rows, 1) TILE(rows, 2)
#define ROW(rows) {tile_##rows##_1, tile_##rows##_2}

TILES(1)
TILES(2)
TILES(3)
TILES(4)
#if DF_TILE_ROWS >= 6
TILES(5)
TILES(6)
#endif
#if DF_TILE_ROWS >= 14
TILES(7)
TILES(8)
TILES(9)
TILES(10)
TILES(11)
TILES(12)
TILES(13)
TILES(14)
#endif

const df_tile DF_NAME(df_tiles)[DF_TILE_ROWS][DF_TILE_VECTORS] = {
    ROW(1), ROW(2), ROW(3), ROW(4),
#if DF_TILE_ROWS >= 6
    ROW(5), ROW(6),
#endif
#if DF_TILE_ROWS >= 14
    ROW(7), ROW(8), ROW(9), ROW(10), ROW(11), ROW(12), ROW(13), ROW(14),
#endif
};
