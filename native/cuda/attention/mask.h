/* attention/mask.h: a tile of the mask in shared memory, and tiles of scores that it closes, as a
 * causal one does half of them: all their weights are zero, and nothing need be computed.
 *
 * That is proved, not assumed: e^x is 0 in float32 below -104, and a score is at most
 * |scale| d max|q| max|k| + mask. So a tile is closed when that lies so far below the maximum (or
 * the logarithm of the sum) of each of its rows, and what zeros are multiplied by is finite; a NaN
 * or an infinity anywhere keeps it open. This reads k, v and the mask, a tenth of what products
 * cost, of tiles whose last row and first key are closed alone. */
#ifndef DF_CUDA_ATTENTION_MASK_H
#define DF_CUDA_ATTENTION_MASK_H
#include "attention/operands.h"
#include "gemm/async.h"

/* ROWS x COLUMNS elements of the mask in shared memory, rows PITCH floats apart, which lets both
 * forms of products read it without conflicts of banks. */
template <int ROWS_, int COLUMNS_> struct df_attention_mask_tile {
  static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, PITCH = COLUMNS + 8;
  static constexpr int FLOATS = ROWS * PITCH;

  /* Begins to copy those from |row| and |column| on, zeros behind |rows| and |columns|;
   * df_async_wait and a barrier end it. All threads of the block take part. */
  static __device__ __forceinline__ void load(float *to, const df_attention_matrix &mask,
                                              int32_t row, int32_t rows, int32_t column,
                                              int32_t columns) {
    constexpr int FOURS = COLUMNS / 4, STEP = DF_ATTENTION_BLOCK / FOURS;
    const int thread = static_cast<int>(threadIdx.x), i = thread / FOURS, j = thread % FOURS * 4;
    if (!mask.fours) {
      for (int index = thread; index < ROWS * COLUMNS; index += DF_ATTENTION_BLOCK) {
        const int of_rows = index / COLUMNS, of_columns = index % COLUMNS;
        const bool there = row + of_rows < rows && column + of_columns < columns;
        to[of_rows * PITCH + of_columns] =
            there ? mask.at[(row + of_rows) * mask.row + (column + of_columns) * mask.column]
                  : 0.0f;
      }
      return;
    }
    const int32_t valid = column + j < columns ? rows - row : 0;
    const float *from = mask.at + (row + i) * mask.row + column + j;
    to += i * PITCH + j;
#pragma unroll
    for (int k = 0; k < ROWS; k += STEP) {
      df_async_four(to + k * PITCH, i + k < valid ? from : mask.at, i + k < valid);
      from += STEP * mask.row;
    }
  }
};

/* Whether a tile with rows up to |end| and keys from |key| on may be closed: that element of a
 * causal mask is closed last. All threads of a block agree. */
static __device__ __forceinline__ bool df_attention_may_be_closed(const df_attention_matrix &mask,
                                                                  int32_t end, int32_t key) {
  return mask.at[(end - 1) * mask.row + key * mask.column] < -1000.0f;
}

/* The largest magnitude in rows [first, first + ROWS) of |x|, as far as there are |rows|, in every
 * thread; NaN where there is one. |scratch| is shared memory for 32 values. */
template <int ROWS, int HEAD>
static __device__ __forceinline__ float
df_attention_largest(const df_attention_matrix &x, int32_t first, int32_t rows, float *scratch) {
  const int32_t left = rows - first;
  const float *from = x.at + first * x.row;
  float most = 0.0f;
  if (x.fours) {
#pragma unroll 4
    for (int index = static_cast<int>(threadIdx.x); index < ROWS * HEAD / 4;
         index += static_cast<int>(blockDim.x)) {
      const int row = index / (HEAD / 4), column = index % (HEAD / 4) * 4;
      if (row >= left || column >= x.width)
        continue;
      const float4 v = *reinterpret_cast<const float4 *>(from + row * x.row + column);
      const float one = df_larger{}(fabsf(v.x), fabsf(v.y));
      most = df_larger{}(most, df_larger{}(one, df_larger{}(fabsf(v.z), fabsf(v.w))));
    }
  } else {
    for (int index = static_cast<int>(threadIdx.x); index < ROWS * HEAD;
         index += static_cast<int>(blockDim.x)) {
      const int row = index / HEAD, column = index % HEAD;
      if (row < left && column < x.width)
        most = df_larger{}(most, fabsf(from[row * x.row + column * x.column]));
    }
  }
  return df_block_join(most, 0.0f, scratch, df_larger{});
}

/* What the magnitude of a score is at most, before a mask is added. */
static __device__ __forceinline__ float df_attention_bound(const df_attention &p, float most_q,
                                                           float most_k) {
  return fabsf(p.scale) * static_cast<float>(p.d) * most_q * most_k * 1.001f; /* for rounding */
}

/* Whether each score of rows [row, row + ROWS) and keys [key, key + KEYS), as far as there are
 * |rows| and |keys|, is so far below |floors| of its row that its weight is 0, if what the mask is
 * added to is at most |bound|; and |factors| of the rows are finite. |floors| and |factors| begin
 * at the first of the rows, |factors| may be null. All threads of the block take part and get the
 * same. */
template <int ROWS, int KEYS>
static __device__ __forceinline__ bool
df_attention_is_below(const df_attention_matrix &mask, int32_t row, int32_t rows, int32_t key,
                      int32_t keys, const float *floors, const float *factors, float bound) {
  constexpr float NO_WEIGHT = 104.0f;
  bool below = true;
#pragma unroll 4
  for (int index = static_cast<int>(threadIdx.x); index < ROWS * KEYS;
       index += static_cast<int>(blockDim.x)) {
    const int i = index / KEYS, j = index % KEYS;
    if (row + i < rows && key + j < keys)
      below =
          below &&
          mask.at[(row + i) * mask.row + (key + j) * mask.column] + bound < floors[i] - NO_WEIGHT &&
          (!factors || fabsf(factors[i]) < INFINITY);
  }
  return !__syncthreads_or(!below);
}

#endif
