/* gemm/blocks.c: dequantizes blocks of a weight into the panels of a product.
 *
 * A panel stays in the second cache while all rows pass over it, so that no more than it is ever in
 * floats: per multiply-add 1/m of a conversion, and a read of 4 or 8 bits where a float has 32. */
#include "gemm/blocks.h"
#include "simd/squares.h"

/* The scales and zero points of block |index| of |count| rows from |n| on, zeros behind them. */
typedef struct block_of_rows {
  float scale[DF_SQUARE];
  int32_t zero[DF_SQUARE];
} block_of_rows;

DF_BLOCKS_INLINE block_of_rows block_at(const df_block_weight *w, int64_t n, int64_t count,
                                        int64_t index, int32_t bits) {
  block_of_rows found = {0};
  for (int64_t i = 0; i < count; i++) {
    found.scale[i] = w->scale[(n + i) * w->count + index];
    found.zero[i] = df_block_zero(w, n + i, index, bits);
  }
  return found;
}

/* A step of a panel: |lanes| of the bytes in |row|, as what they stand for. */
DF_BLOCKS_INLINE void put_step(float *out, df_square_row row, const block_of_rows *block,
                               int64_t lanes) {
  uint8_t bytes[DF_SQUARE];
  memcpy(bytes, &row, sizeof bytes);
  for (int64_t i = 0; i < lanes; i += DF_LANES) {
    df_ivec zero;
    memcpy(&zero, block->zero + i, sizeof zero);
    const df_vec steps = __builtin_convertvector(df_block_bytes(bytes + i) - zero, df_vec);
    vec_store(out + i, steps * vec_load(block->scale + i));
  }
}

/* The columns are rows of the weight: squares of their bytes are transposed in registers, so that
 * the elements of a step lie together before they become floats. */
DF_BLOCKS_INLINE void pack_down(float *out, const df_block_weight *w, int64_t n, int64_t p,
                                int64_t columns, int64_t width, int64_t k, int32_t bits) {
  const int64_t each = 8 / bits, size = INT64_C(1) << w->shift;
  const int64_t steps = df_min(DF_SQUARE * each, size);
  for (int64_t j = 0; j < width; j += DF_SQUARE) {
    const int64_t count = df_min(DF_SQUARE, columns - j), lanes = df_min(DF_SQUARE, width - j);
    block_of_rows block = {0};
    for (int64_t step = 0; step < k; step += steps) {
      if (step == 0 || ((p + step) & (size - 1)) == 0)
        block = block_at(w, n + j, count, (p + step) >> w->shift, bits);
      df_square_row square[DF_SQUARE] = {{0}};
      const uint8_t *from = w->bytes + (n + j) * w->row + (p + step) / each;
      for (int64_t i = 0; i < count; i++)
        if (steps == DF_SQUARE * each)
          memcpy(&square[i], from + i * w->row, DF_SQUARE);
        else
          memcpy(&square[i], from + i * w->row, DF_SQUARE / 2);
      df_transpose_bytes(square);
      float *to = out + step * width + j;
      for (int64_t i = 0, end = df_min(steps, k - step); i < end; i += each) {
        const df_square_row both = square[i / each];
        put_step(to + i * width, bits == 4 ? both & 15 : both, &block, lanes);
        if (bits == 4 && i + 1 < end)
          put_step(to + (i + 1) * width, both >> 4, &block, lanes);
      }
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
