/* conv/direct_tile.h: the innermost loop of convolutions with prepacked weights.
 *
 * Lanes run over filters, rows over positions: a tile has whole vectors of filters whatever the
 * size of the plane is, and what it reads of the source are single floats, at any address. */
#ifndef DF_CPU_CONV_DIRECT_TILE_H
#define DF_CPU_CONV_DIRECT_TILE_H

#include "cpu.h"
#include "simd/vector.h"

/* As many positions as leave two registers for weights and one for a broadcast; at most DF_LANES,
 * so that the sums of one vector are transposed as one square. */
#if DF_LANES == 16
enum { DF_DIRECT_ROWS = 14 };
#elif DF_LANES == 8
enum { DF_DIRECT_ROWS = 6 };
#else
enum { DF_DIRECT_ROWS = 4 };
#endif
enum { DF_DIRECT_VECTORS = 2, DF_DIRECT_FILTERS = DF_DIRECT_VECTORS * DF_LANES };

/* What is read later, and fetched meanwhile into the second cache: |per_step| floats each step. */
typedef struct df_ahead {
  const float *next;
  int64_t per_step;
} df_ahead;

/* What tile |index| of |count|, all with the same weights, fetches of |floats| that come next. */
static inline df_ahead df_ahead_make(const float *next, int64_t floats, int64_t k, int64_t index,
                                     int64_t count) {
  int64_t per_step = df_divide_up(floats, df_max(1, k * count));
  return (df_ahead){next + index * k * per_step, per_step};
}

/* sums[i][lane] = sum over p < k of source[shift[p] + i] * weight[p][lane]; the lanes of a row and
 * of a step lie together, one or two vectors of them. */
typedef void (*df_direct_tile)(int64_t k, const float *weight, const float *source,
                               const int32_t *shift, df_ahead ahead, float *sums);

/* By number of positions less one and of vectors less one. */
extern const df_direct_tile DF_NAME(df_direct_tiles)[DF_DIRECT_ROWS][DF_DIRECT_VECTORS];

/* From sums[position][lane] to out[filter][position] = relu(sums + bias + add); add may be out. */
static inline void df_direct_send(float *out, const float *add, int64_t pitch, const float *sums,
                                  int64_t rows, int64_t vectors, int64_t filters, const float *bias,
                                  float high) {
  for (int64_t j = 0; j < vectors; j++) {
    df_vec square[DF_LANES];
    for (int64_t i = 0; i < DF_LANES; i++)
      square[i] = i < rows ? vec_load(sums + (i * vectors + j) * DF_LANES) : vec_zero();
    vec_transpose(square);
    for (int64_t f = 0; f < df_min(DF_LANES, filters - j * DF_LANES); f++) {
      int64_t at = (j * DF_LANES + f) * pitch;
      df_vec value = square[f];
      if (bias)
        value += vec_splat(bias[j * DF_LANES + f]);
      if (add)
        value += vec_load_partial(add + at, rows);
      vec_store_partial(out + at, vec_activate(value, high), rows);
    }
  }
}

#endif
