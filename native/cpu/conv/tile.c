/* conv/tile.c: one function per size of a tile, all from two inlined loops. */
#include "conv/tile.h"

#define TILE_INLINE static inline __attribute__((always_inline))

/* Per step one vector of the source per column of vectors, at any address, and one broadcast per
 * row. */
TILE_INLINE void shift_tile(int rows, int vectors, int64_t k, const float *a, const float *source,
                            const int32_t *shift, float *out, int64_t pitch, int32_t accumulate) {
  df_vec sum[14][8];
#define FOR_EACH                                                                                   \
  _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)                                          \
      _Pragma("GCC unroll 8") for (int j = 0; j < vectors; j++)
  FOR_EACH sum[i][j] = vec_zero();
  for (int64_t p = 0; p < k; p++, a += rows) {
    const float *from = source + shift[p];
    df_vec right[8];
#pragma GCC unroll 8
    for (int j = 0; j < vectors; j++)
      right[j] = vec_load(from + j * DF_LANES);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
      df_vec left = vec_splat(a[i]);
#pragma GCC unroll 8
      for (int j = 0; j < vectors; j++)
        sum[i][j] += left * right[j];
    }
  }
  if (accumulate) {
    FOR_EACH sum[i][j] += vec_load(out + i * pitch + j * DF_LANES);
  }
  FOR_EACH vec_store(out + i * pitch + j * DF_LANES, sum[i][j]);
#undef FOR_EACH
}

/* Lanes run along positions; per step rows + columns vectors are loaded for rows * columns
 * multiply-adds. */
TILE_INLINE void dot_tile(int rows, int columns, const df_dot *dot, float *out, int64_t pitch) {
  df_vec sum[4][6];
#define FOR_EACH                                                                                   \
  _Pragma("GCC unroll 4") for (int i = 0; i < rows; i++)                                           \
      _Pragma("GCC unroll 6") for (int j = 0; j < columns; j++)
  FOR_EACH sum[i][j] = vec_zero();
  const float *right[6];
#pragma GCC unroll 6
  for (int j = 0; j < columns; j++)
    right[j] = dot->right + dot->shift[j];
  for (int64_t image = 0; image < dot->images; image++) {
    const float *left = dot->left + image * dot->left_image;
    int64_t ahead = image * dot->right_image;
    for (int64_t q = 0; q < dot->count; q += DF_LANES) {
      df_vec line[4];
#pragma GCC unroll 4
      for (int i = 0; i < rows; i++)
        line[i] = vec_load(left + i * dot->left_pitch + q);
#pragma GCC unroll 6
      for (int j = 0; j < columns; j++) {
        df_vec other = vec_load(right[j] + ahead + q);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++)
          sum[i][j] += line[i] * other;
      }
    }
  }
  FOR_EACH out[i * pitch + j] += vec_sum(sum[i][j]);
#undef FOR_EACH
}

#define SHIFT(rows, vectors)                                                                       \
  static void shift_##rows(int64_t k, const float *a, const float *source, const int32_t *shift,   \
                           float *out, int64_t pitch, int32_t accumulate) {                        \
    shift_tile(rows, vectors, k, a, source, shift, out, pitch, accumulate);                        \
  }
#define DOT(rows, columns)                                                                         \
  static void dot_##rows##_##columns(const df_dot *dot, float *out, int64_t pitch) {               \
    dot_tile(rows, columns, dot, out, pitch);                                                      \
  }

/* Rows and the widest tile that the registers hold with them: rows * vectors sums, the vectors, a
 * broadcast. */
#if DF_LANES == 16
#define FOR_SHIFTS(X)                                                                              \
  X(1, 8)                                                                                          \
  X(2, 8)                                                                                          \
  X(3, 6)                                                                                          \
  X(4, 6) X(5, 4) X(6, 4) X(7, 3) X(8, 3) X(9, 3) X(10, 2) X(11, 2) X(12, 2) X(13, 2) X(14, 2)
#define FOR_DOT_ROWS(X) X(1) X(2) X(3) X(4)
#define FOR_DOT_COLUMNS(X, rows) X(rows, 1) X(rows, 2) X(rows, 3) X(rows, 4) X(rows, 5) X(rows, 6)
#elif DF_LANES == 8
#define FOR_SHIFTS(X) X(1, 6) X(2, 4) X(3, 3) X(4, 2) X(5, 2) X(6, 2)
#define FOR_DOT_ROWS(X) X(1) X(2) X(3)
#define FOR_DOT_COLUMNS(X, rows) X(rows, 1) X(rows, 2) X(rows, 3)
#else
#define FOR_SHIFTS(X) X(1, 4) X(2, 4) X(3, 3) X(4, 2)
#define FOR_DOT_ROWS(X) X(1) X(2)
#define FOR_DOT_COLUMNS(X, rows) X(rows, 1) X(rows, 2) X(rows, 3) X(rows, 4)
#endif

FOR_SHIFTS(SHIFT)
#define DOT_ROW(rows) FOR_DOT_COLUMNS(DOT, rows)
FOR_DOT_ROWS(DOT_ROW)

#define SHIFT_ENTRY(rows, vectors) {shift_##rows, vectors},
const df_shift_tiles DF_NAME(df_shift_tile_table)[DF_SHIFT_ROWS] = {FOR_SHIFTS(SHIFT_ENTRY)};

#define DOT_ENTRY(rows, columns) dot_##rows##_##columns,
#define DOT_ENTRIES(rows) {FOR_DOT_COLUMNS(DOT_ENTRY, rows)},
const df_dot_tile DF_NAME(df_dot_tiles)[DF_DOT_ROWS][DF_DOT_COLUMNS] = {FOR_DOT_ROWS(DOT_ENTRIES)};
