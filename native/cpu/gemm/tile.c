/* gemm/tile.c: one function per height and width of a tile, all from one inlined loop. */
#include "gemm/tile.h"

/* It is made for each tile: larger than a line of the cache it is cleared by two stores, and what
 * then reads across both waits for 100 cycles. */
_Static_assert(sizeof(df_tile_epilogue) <= 64, "df_tile_epilogue must fit a line of the cache");

#define TILE_INLINE static inline __attribute__((always_inline))

/* All sums of a tile, unrolled; |i| is the row and |j| the vector. */
#define FOR_EACH                                                                                   \
  _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)                                          \
      _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++)

/* Vector |j| of a row of |vectors|, the last of which has |last| lanes. */
TILE_INLINE df_vec load_columns(const float *row, int j, int vectors, int64_t last) {
  if (j < vectors - 1 || last == DF_LANES)
    return vec_load(row + j * DF_LANES);
  return vec_load_partial(row + j * DF_LANES, last);
}

/* Where a step of a lies: its first row when rows lie together, else every third, so that an
 * address is one of these and at most twice the distance of two rows. */
enum { ANCHORS = (DF_TILE_ROWS + 2) / 3 };
typedef struct rows_of_a {
  const float *anchor[ANCHORS];
  int64_t row, step;
} rows_of_a;

TILE_INLINE void next_step(int together, rows_of_a *a) {
  for (int i = 0; i < (together ? 1 : ANCHORS); i++)
    a->anchor[i] += together ? a->step : 1;
}

/* One step of k. |rows|, |vectors| and |together| are constants at every use: the loops over them
 * vanish, and |sum| is registers. */
TILE_INLINE void add_step(int rows, int vectors, int together, const rows_of_a *a, const float *b,
                          df_vec sum[DF_TILE_ROWS][DF_TILE_VECTORS]) {
  df_vec right[DF_TILE_VECTORS];
#pragma GCC unroll 4
  for (int j = 0; j < vectors; j++)
    right[j] = vec_load(b + j * DF_LANES);
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++) {
    df_vec left = vec_splat(together ? a->anchor[0][i] : a->anchor[i / 3][i % 3 * a->row]);
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++)
      sum[i][j] += left * right[j];
  }
}

TILE_INLINE void tile(int rows, int vectors, int together, int strided, int64_t k,
                      const float *from, const float *b, float *c, int64_t c_row, int64_t columns,
                      const df_tile_epilogue *epilogue) {
  rows_of_a a = {.row = epilogue->a_row, .step = epilogue->a_step};
  for (int i = 0; i < (together ? 1 : ANCHORS); i++)
    a.anchor[i] = from + 3 * i * epilogue->a_row;
  const int64_t b_step = strided ? epilogue->b_step : vectors * DF_LANES;
  df_vec sum[DF_TILE_ROWS][DF_TILE_VECTORS];
  if (strided && epilogue->begun) {
    FOR_EACH sum[i][j] = vec_load(epilogue->begun + i * DF_TILE_COLUMNS + j * DF_LANES);
  } else {
    FOR_EACH sum[i][j] = vec_zero();
  }
  int64_t p = 0;
  if (!strided) {
    const char *next = epilogue->ahead.next;
    const int64_t end = df_min(k, (int64_t)epilogue->ahead.rows * DF_AHEAD_STEPS);
    for (; p + DF_AHEAD_STEPS <= end; p += DF_AHEAD_STEPS, next += epilogue->ahead.row) {
      for (int64_t at = 0; at < DF_TILE_COLUMNS * 4; at += 64)
        __builtin_prefetch(next + at, 0, 2);
#pragma GCC unroll 1 /* steps that overlap take more registers than AVX2 has */
      for (int s = 0; s < DF_AHEAD_STEPS; s++, b += b_step) {
        add_step(rows, vectors, together, &a, b, sum);
        next_step(together, &a);
      }
    }
  }
  for (; p < k; p++, b += b_step) {
    add_step(rows, vectors, together, &a, b, sum);
    next_step(together, &a);
  }
  /* Only the last vector of a row can be partly outside. */
  int64_t last = columns - (vectors - 1) * DF_LANES;
  if (epilogue->accumulate) {
    FOR_EACH sum[i][j] += load_columns(c + i * c_row, j, vectors, last);
  }
  if (epilogue->add) {
    FOR_EACH sum[i][j] += load_columns(epilogue->add + i * c_row, j, vectors, last);
  }
  if (epilogue->row_bias) {
    FOR_EACH sum[i][j] += vec_splat(epilogue->row_bias[i]);
  }
  if (epilogue->column_bias) {
    FOR_EACH sum[i][j] += load_columns(epilogue->column_bias, j, vectors, last);
  }
  if (epilogue->high) {
    FOR_EACH sum[i][j] = vec_activate(sum[i][j], epilogue->high);
  }
  if (last == DF_LANES) {
    FOR_EACH vec_store(c + i * c_row + j * DF_LANES, sum[i][j]);
  } else {
    FOR_EACH if (j < vectors - 1) vec_store(c + i * c_row + j * DF_LANES, sum[i][j]);
    else vec_store_partial(c + i * c_row + j * DF_LANES, sum[i][j], last);
  }
}

#define TILE(rows, vectors)                                                                        \
  static void tile_##rows##_##vectors(int64_t k, const float *a, const float *b, float *c,         \
                                      int64_t c_row, int64_t columns,                              \
                                      const df_tile_epilogue *epilogue) {                          \
    tile(rows, vectors, 1, 0, k, a, b, c, c_row, columns, epilogue);                               \
  }                                                                                                \
  static void row_tile_##rows##_##vectors(int64_t k, const float *a, const float *b, float *c,     \
                                          int64_t c_row, int64_t columns,                          \
                                          const df_tile_epilogue *epilogue) {                      \
    tile(rows, vectors, 0, 0, k, a, b, c, c_row, columns, epilogue);                               \
  }
#define STRIDED_TILE(rows)                                                                         \
  static void strided_tile_##rows(int64_t k, const float *a, const float *b, float *c,             \
                                  int64_t c_row, int64_t columns,                                  \
                                  const df_tile_epilogue *epilogue) {                              \
    tile(rows, DF_TILE_VECTORS, 1, 1, k, a, b, c, c_row, columns, epilogue);                       \
  }
#define TILES(rows) TILE(rows, 1) TILE(rows, 2) STRIDED_TILE(rows)
#define STRIDED_ENTRY(rows) strided_tile_##rows,
#define ENTRY(rows) {tile_##rows##_1, tile_##rows##_2},
#define ROW_ENTRY(rows) {row_tile_##rows##_1, row_tile_##rows##_2},

#if DF_TILE_ROWS == 14
#define FOR_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#elif DF_TILE_ROWS == 6
#define FOR_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#else
#define FOR_ROWS(X) X(1) X(2) X(3) X(4)
#endif

FOR_ROWS(TILES)

const df_tile DF_NAME(df_tiles)[DF_TILE_ROWS][DF_TILE_VECTORS] = {FOR_ROWS(ENTRY)};
const df_tile DF_NAME(df_row_tiles)[DF_TILE_ROWS][DF_TILE_VECTORS] = {FOR_ROWS(ROW_ENTRY)};
const df_tile DF_NAME(df_strided_tiles)[DF_TILE_ROWS] = {FOR_ROWS(STRIDED_ENTRY)};
