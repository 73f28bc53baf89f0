/* conv/direct_tile.c: one function per number of positions and width, all from one inlined loop. */
#include "conv/direct_tile.h"

#define TILE_INLINE static inline __attribute__((always_inline))

/* |rows| and |vectors| are constants at every use: the loops over them vanish, and |sum| is
 * registers. */
TILE_INLINE void tile(int rows, int vectors, int64_t k, const float *weight, const float *source,
                      const int32_t *shift, df_ahead ahead, float *sums) {
  df_vec sum[DF_DIRECT_ROWS][DF_DIRECT_VECTORS];
#define FOR_EACH                                                                                   \
  _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)                                          \
      _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++)
  FOR_EACH sum[i][j] = vec_zero();
  for (int64_t p = 0; p < k; p++, weight += vectors * DF_LANES) {
    const float *from = source + shift[p];
    /* Weights come from far once; shared by all tiles they take no time of their own. */
    __builtin_prefetch(ahead.next, 0, 2);
    ahead.next += ahead.per_step;
    __builtin_prefetch(from + 2 * DF_LANES);
    df_vec right[DF_DIRECT_VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++)
      right[j] = vec_load(weight + j * DF_LANES);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
      df_vec left = vec_splat(from[i]);
#pragma GCC unroll 4
      for (int j = 0; j < vectors; j++)
        sum[i][j] += left * right[j];
    }
  }
  FOR_EACH vec_store(sums + (i * vectors + j) * DF_LANES, sum[i][j]);
#undef FOR_EACH
}

#define TILE(rows, vectors)                                                                        \
  static void tile_##rows##_##vectors(int64_t k, const float *weight, const float *source,         \
                                      const int32_t *shift, df_ahead ahead, float *sums) {         \
    tile(rows, vectors, k, weight, source, shift, ahead, sums);                                    \
  }
#define TILES(rows) TILE(rows, 1) TILE(rows, 2)
#define ENTRY(rows) {tile_##rows##_1, tile_##rows##_2},

#if DF_LANES == 16
#define FOR_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#elif DF_LANES == 8
#define FOR_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#else
#define FOR_ROWS(X) X(1) X(2) X(3) X(4)
#endif

FOR_ROWS(TILES)

const df_direct_tile DF_NAME(df_direct_tiles)[DF_DIRECT_ROWS][DF_DIRECT_VECTORS] = {
    FOR_ROWS(ENTRY)};
