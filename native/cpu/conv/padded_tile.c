/* conv/padded_tile.c: one function per stride, width and form, all from one inlined loop. */
#include "conv/padded_tile.h"

#define TILE_INLINE static inline __attribute__((always_inline))

/* All but k are constants at every use: the loops over them vanish, and |sum| is registers. */
TILE_INLINE void tile(int stride, int vectors, int lines, int columns, int64_t k,
                      const float *weight, const float *source, const int32_t *shift, int64_t pitch,
                      float *sums) {
  df_vec sum[DF_DIRECT_ROWS][DF_DIRECT_VECTORS];
#pragma GCC unroll 16
  for (int i = 0; i < lines * columns; i++)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++)
      sum[i][j] = vec_zero();
  for (int64_t p = 0; p < k; p++, weight += vectors * DF_LANES) {
    const float *from = source + shift[p];
    df_vec right[DF_DIRECT_VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++)
      right[j] = vec_load(weight + j * DF_LANES);
#pragma GCC unroll 4
    for (int line = 0; line < lines; line++)
#pragma GCC unroll 16
      for (int i = 0; i < columns; i++) {
        df_vec left = vec_splat(from[line * pitch + i * stride]);
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
          sum[line * columns + i][j] += left * right[j];
      }
  }
#pragma GCC unroll 16
  for (int i = 0; i < lines * columns; i++)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++)
      vec_store(sums + (i * vectors + j) * DF_LANES, sum[i][j]);
}

#define NAME(s, v, l, c) tile_##s##_##v##_##l##_##c
#define TILE(s, v, l, c)                                                                           \
  static void NAME(s, v, l, c)(int64_t k, const float *weight, const float *source,                \
                               const int32_t *shift, int64_t pitch, float *sums) {                 \
    tile(s, v, l, c, k, weight, source, shift, pitch, sums);                                       \
  }
#define ENTRY(s, v, l, c) NAME(s, v, l, c),

/* By columns. */
#define TO_2(X, s, v, l) X(s, v, l, 1) X(s, v, l, 2)
#define TO_4(X, s, v, l) TO_2(X, s, v, l) X(s, v, l, 3) X(s, v, l, 4)
#define TO_7(X, s, v, l) TO_4(X, s, v, l) X(s, v, l, 5) X(s, v, l, 6) X(s, v, l, 7)
#define TO_10(X, s, v, l) TO_7(X, s, v, l) X(s, v, l, 8) X(s, v, l, 9) X(s, v, l, 10)
#define TO_12(X, s, v, l) TO_10(X, s, v, l) X(s, v, l, 11) X(s, v, l, 12)

#if DF_LANES == 16
#define FOR_ONE(X, s, v) TO_12(X, s, v, 1) X(s, v, 1, 13) X(s, v, 1, 14)
#define FOR_TWO(X, s, v) TO_7(X, s, v, 2)
#elif DF_LANES == 8
#define FOR_ONE(X, s, v) TO_4(X, s, v, 1) X(s, v, 1, 5) X(s, v, 1, 6)
#define FOR_TWO(X, s, v) TO_2(X, s, v, 2) X(s, v, 2, 3)
#else
#define FOR_ONE(X, s, v) TO_4(X, s, v, 1)
#define FOR_TWO(X, s, v) TO_2(X, s, v, 2)
#endif
#define FOR_LINES(X, s, v) FOR_ONE(X, s, v) FOR_TWO(X, s, v)

FOR_LINES(TILE, 1, 1)
FOR_LINES(TILE, 1, 2)
FOR_LINES(TILE, 2, 1)
FOR_LINES(TILE, 2, 2)

#define ENTRIES(s, v)                                                                              \
  {                                                                                                \
    {FOR_ONE(ENTRY, s, v)}, { FOR_TWO(ENTRY, s, v) }                                               \
  }

static const df_padded_tile tiles[DF_PADDED_STRIDE][DF_DIRECT_VECTORS][DF_PADDED_LINES]
                                 [DF_DIRECT_ROWS] = {{ENTRIES(1, 1), ENTRIES(1, 2)},
                                                     {ENTRIES(2, 1), ENTRIES(2, 2)}};

df_padded_tile DF_NAME(df_padded_tile_of)(int64_t stride, int64_t vectors, int64_t lines,
                                          int64_t columns) {
  DF_ASSUME(stride > 0 && vectors > 0 && lines > 0 && columns > 0);
  return tiles[stride - 1][vectors - 1][lines - 1][columns - 1];
}
