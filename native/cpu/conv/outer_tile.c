/* conv/outer_tile.c: one function per height and width of a tile, all from one inlined loop. */
#include "conv/outer_tile.h"

#define TILE_INLINE static inline __attribute__((always_inline))

/* All sums of a tile, unrolled; |i| is the row and |j| the vector. */
#define FOR_EACH                                                                                   \
  _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)                                          \
      _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++)

/* |rows| and |vectors| are constants at every use: the loops over them vanish, and |sum| is
 * registers. */
TILE_INLINE void tile(int rows, int vectors, const df_outer *outer, float *sums) {
  df_vec sum[DF_OUTER_ROWS][DF_OUTER_VECTORS];
  FOR_EACH sum[i][j] = vec_zero();
  const float *right = outer->right;
  int64_t shift[DF_OUTER_ROWS];
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++)
    shift[i] = outer->shift[i];
  for (int64_t image = 0; image < outer->images; image++)
    for (int64_t line = 0; line < outer->lines; line++) {
      const float *left = outer->left + image * outer->image_pitch + line * outer->line_pitch;
      for (const float *end = left + outer->width; left < end; left++) {
        df_vec column[DF_OUTER_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++, right += DF_LANES)
          column[j] = vec_load(right);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
          df_vec row = vec_splat(left[shift[i]]);
#pragma GCC unroll 4
          for (int j = 0; j < vectors; j++)
            sum[i][j] += row * column[j];
        }
      }
    }
  FOR_EACH vec_store(sums + i * DF_OUTER_COLUMNS + j * DF_LANES, sum[i][j]);
}

#define TILE(rows, vectors)                                                                        \
  static void tile_##rows##_##vectors(const df_outer *outer, float *sums) {                        \
    tile(rows, vectors, outer, sums);                                                              \
  }
#define TILES(rows) TILE(rows, 1) TILE(rows, 2)
#define ROW(rows) {tile_##rows##_1, tile_##rows##_2}

TILES(1)
TILES(2)
TILES(3)
TILES(4)
#if DF_LANES >= 8
TILES(5)
TILES(6)
#endif
#if DF_LANES >= 16
TILES(7)
TILES(8)
TILES(9)
TILES(10)
TILES(11)
TILES(12)
TILES(13)
TILES(14)
#endif

const df_outer_tile DF_NAME(df_outer_tiles)[DF_OUTER_ROWS][DF_OUTER_VECTORS] = {
    ROW(1), ROW(2), ROW(3), ROW(4),
#if DF_LANES >= 8
    ROW(5), ROW(6),
#endif
#if DF_LANES >= 16
    ROW(7), ROW(8), ROW(9), ROW(10), ROW(11), ROW(12), ROW(13), ROW(14),
#endif
};
