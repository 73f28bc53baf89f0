/* gemm/pack.h: packing of the operands of tiles, transposing where rows lie together but columns
 * are wanted.
 */
#ifndef DF_CPU_GEMM_PACK_H
#define DF_CPU_GEMM_PACK_H

#include "cpu.h"
#include "simd/half.h"

/* out[p * width + i] = from[i * row + p] for i < rows <= DF_LANES, p < k, by squares transposed in
 * registers; |from| holds elements of |dtype|. Each step writes DF_LANES lanes: those from |rows|
 * on are zeros, and those from |width| on are overwritten by the next step or lie in the slack of
 * DF_LANES floats behind |out|.
 */
DF_HALF_INLINE void df_pack_transposed_from(float *out, const void *from, int64_t row, int64_t rows,
                                            int64_t k, int64_t width, int32_t dtype) {
  for (int64_t p = 0; p < k; p += DF_LANES) {
    int64_t steps = df_min(DF_LANES, k - p);
    df_vec square[DF_LANES];
    for (int i = 0; i < DF_LANES; i++)
      square[i] = i >= rows           ? vec_zero()
                  : steps == DF_LANES ? vec_load_from(from, i * row + p, dtype)
                                      : vec_load_partial_from(from, i * row + p, steps, dtype);
    vec_transpose(square);
    for (int i = 0; i < DF_LANES; i++)
      if (i < steps)
        vec_store(out + (p + i) * width, square[i]);
  }
}

static inline void df_pack_transposed(float *out, const float *from, int64_t row, int64_t rows,
                                      int64_t k, int64_t width) {
  df_pack_transposed_from(out, from, row, rows, k, width, DF_FLOAT32);
}

/* Rows for a tile: out[p * height + i] = a[i][p] for |rows| rows, |k| steps. The slack behind it is
 * DF_LANES floats. */
static inline void df_pack_tile(float *out, const float *a, int64_t a_row, int64_t a_col,
                                int64_t rows, int64_t k, int64_t height) {
  if (a_col == 1 && height <= DF_LANES) {
    df_pack_transposed(out, a, a_row, rows, k, height);
  } else if (a_row == 1 && height <= DF_LANES) {
    for (int64_t p = 0; p < k; p++)
      vec_store(out + p * height, vec_load_partial(a + p * a_col, rows));
  } else {
    for (int64_t p = 0; p < k; p++)
      for (int64_t i = 0; i < rows; i++)
        out[p * height + i] = a[i * a_row + p * a_col];
  }
}

/* Columns for a tile: out[p * width + j] = b[p][j] for |columns| columns, zeros up to |width|,
 * which is 1 or 2 vectors; |k| steps. The same slack. b holds elements of |dtype|. */
DF_HALF_INLINE void df_pack_panel_from(float *out, const void *b, int64_t b_row, int64_t b_col,
                                       int64_t columns, int64_t width, int64_t k, int32_t dtype) {
  for (int64_t j = 0; j < width; j += DF_LANES) {
    const int64_t count = df_max(0, df_min(DF_LANES, columns - j));
    const int64_t from = j * b_col;
    if (b_col == 1) {
      for (int64_t p = 0; p < k; p++)
        vec_store(out + p * width + j,
                  count == DF_LANES ? vec_load_from(b, from + p * b_row, dtype)
                                    : vec_load_partial_from(b, from + p * b_row, count, dtype));
    } else if (b_row == 1) {
      const int64_t item = dtype == DF_FLOAT32 ? 4 : 2;
      df_pack_transposed_from(out + j, (const char *)b + from * item, b_col, count, k, width,
                              dtype);
    } else {
      for (int64_t p = 0; p < k; p++)
        for (int64_t lane = 0; lane < DF_LANES; lane++)
          out[p * width + j + lane] =
              lane < count ? df_load_from(b, from + p * b_row + lane * b_col, dtype) : 0.0f;
    }
  }
}

static inline void df_pack_panel(float *out, const float *b, int64_t b_row, int64_t b_col,
                                 int64_t columns, int64_t width, int64_t k) {
  df_pack_panel_from(out, b, b_row, b_col, columns, width, k, DF_FLOAT32);
}

#endif
