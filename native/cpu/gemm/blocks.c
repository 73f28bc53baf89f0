/* gemm/blocks.c: dequantizes blocks of a weight into the panels of a product.
 *
 * A panel stays in the second cache while all rows pass over it, so that no more than it is ever in
 * floats: per multiply-add 1/m of a conversion, and a read of 4 or 8 bits where a float has 32. */
#include "gemm/blocks.h"

/* The columns are rows of the weight: squares of them are transposed in registers. */
DF_BLOCKS_INLINE void pack_down(float *out, const df_block_weight *w, int64_t n, int64_t p,
                                int64_t columns, int64_t width, int64_t k, int32_t bits) {
  for (int64_t j = 0; j < width; j += DF_LANES) {
    const int64_t count = columns - j;
    for (int64_t step = 0; step < k; step += DF_LANES) {
      const int64_t steps = df_min(DF_LANES, k - step);
      df_vec square[DF_LANES];
      for (int64_t i = 0; i < DF_LANES; i++)
        square[i] = i < count ? df_block_load(w, n + j + i, p + step, bits) : vec_zero();
      vec_transpose(square);
      for (int64_t i = 0; i < DF_LANES; i++)
        if (i < steps)
          vec_store(out + (step + i) * width + j, square[i]);
    }
  }
}

/* The steps are rows of the weight. */
DF_BLOCKS_INLINE void pack_across(float *out, const df_block_weight *w, int64_t n, int64_t p,
                                  int64_t columns, int64_t width, int64_t k, int32_t bits) {
  for (int64_t step = 0; step < k; step++)
    for (int64_t j = 0; j < width; j += DF_LANES)
      vec_store(out + step * width + j,
                j < columns ? df_block_load(w, n + step, p + j, bits) : vec_zero());
}

void DF_NAME(df_blocks_pack)(float *out, const df_block_weight *w, int64_t at, int64_t columns,
                             int64_t width, int64_t k) {
  const int64_t n = at / w->size, p = at % w->size;
  if (w->across && w->bits == 4)
    pack_across(out, w, n, p, columns, width, k, 4);
  else if (w->across)
    pack_across(out, w, n, p, columns, width, k, 8);
  else if (w->bits == 4)
    pack_down(out, w, n, p, columns, width, k, 4);
  else
    pack_down(out, w, n, p, columns, width, k, 8);
}
