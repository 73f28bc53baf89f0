/* attention/mask.h: what a mask does to tiles of scores. Many are open, where it is 0 throughout,
 * and a causal one closes half of them: all their weights are 0, and nothing need be computed.
 *
 * That a tile is closed is proved, not assumed: e^x is 0 in float32 below -104, and a score is at
 * most |scale| d max|q| max|k| + mask. So it is when that lies so far below the maximum (or the
 * logarithm of the sum) of each of its rows, and what zeros are multiplied by is finite; a NaN or
 * an infinity anywhere keeps it open. One kernel before the others finds what the proof needs of
 * each tile of 64 rows: it reads each operand once, 4 (2 m + 2 n) d bytes, where products read it
 * once per tile of the other side. */
#ifndef DF_CUDA_ATTENTION_MASK_H
#define DF_CUDA_ATTENTION_MASK_H
#include "attention/operands.h"
#include "gemm/async.h"

enum { DF_ATTENTION_SIDE = 64 }; /* of summarized tiles */

/* What is known of tiles. Those of other sizes are made of these, or are in one of them. */
struct df_attention_summary {
  bool used;                      /* else a mask is read everywhere, if there is one */
  int32_t down, across;           /* tiles of queries and of keys */
  int32_t mask_down, mask_across; /* of a mask; 1 where it is the same for all */
  int64_t batch;
  float2 *mask;                       /* smallest and largest */
  float *most[DF_ATTENTION_OPERANDS]; /* magnitude, per batch entry and tile; null for others */
  const float *logsum;                /* null without one */
  float *least;                       /* logsum, per batch entry and tile */

  __device__ __forceinline__ float most_of(int operand, int64_t entry, int32_t begin,
                                           int32_t end) const {
    const bool of_keys = operand == DF_ATTENTION_K || operand == DF_ATTENTION_V;
    const float *tiles = most[operand] + entry * (of_keys ? across : down);
    float found = 0.0f;
    for (int32_t tile = begin / DF_ATTENTION_SIDE; tile * DF_ATTENTION_SIDE < end; tile++)
      found = df_larger{}(found, tiles[tile]);
    return found;
  }

  __device__ __forceinline__ float least_of(int64_t entry, int32_t begin, int32_t end) const {
    float found = INFINITY;
    for (int32_t tile = begin / DF_ATTENTION_SIDE; tile * DF_ATTENTION_SIDE < end; tile++)
      found = DF_MINIMUM(found, least[entry * down + tile]);
    return found;
  }

  /* The same for one tile. */
  __device__ __forceinline__ float2 mask_tile(int64_t matrix, int32_t i, int32_t j) const {
    return mask[(matrix * mask_down + (mask_down > 1 ? i : 0)) * mask_across +
                (mask_across > 1 ? j : 0)];
  }

  /* The smallest and largest element of mask number |matrix| in rows and keys [begin, end). */
  __device__ __forceinline__ float2 mask_of(int64_t matrix, int32_t row, int32_t row_end,
                                            int32_t key, int32_t key_end) const {
    float2 found = make_float2(INFINITY, -INFINITY);
    for (int32_t i = row / DF_ATTENTION_SIDE; i * DF_ATTENTION_SIDE < row_end; i++)
      for (int32_t j = key / DF_ATTENTION_SIDE; j * DF_ATTENTION_SIDE < key_end; j++) {
        const float2 tile = mask_tile(matrix, i, j);
        found.x = DF_MINIMUM(found.x, tile.x);
        found.y = DF_MAXIMUM(found.y, tile.y);
      }
    return found;
  }
};

/* Whether a mask does nothing, by its smallest and largest element. */
static __device__ __forceinline__ bool df_attention_is_open(float2 mask) {
  return mask.x == 0.0f && mask.y == 0.0f;
}

/* Whether a score has no weight in a row of this maximum or logarithm of the sum, where the mask is
 * at most |mask| and what it is added to at most |bound|. False for a NaN. */
static __device__ __forceinline__ bool df_attention_is_below(float mask, float bound, float row) {
  return mask + bound < row - 104.0f;
}

/* What the magnitude of a score is at most, before a mask is added. */
static __device__ __forceinline__ float df_attention_bound(const df_attention &p, float most_q,
                                                           float most_k) {
  return fabsf(p.scale) * static_cast<float>(p.d) * most_q * most_k * 1.001f; /* for rounding */
}

/* What a block of attention's forward kernels knows of the tiles before it: its rows are those of
 * [first, last) of a batch entry. */
struct df_attention_passing {
  const df_attention &p;
  const df_attention_summary &known;
  int64_t entry, mask; /* the number of the mask */
  int32_t first, last, end;
  float most_q;
  bool open; /* whether the mask does nothing in the tile that was found */

  /* The first of the tiles of KEYS keys from |key| up to |end| that is not closed, as far as the
   * rows show: |is_below|(mask, bound) says it for those of this thread. */
  template <int KEYS, typename F> __device__ __forceinline__ int32_t next(int32_t key, F is_below) {
    for (; known.used && key < end; key += KEYS) {
      const int32_t key_end = static_cast<int32_t>(df_min(end, key + KEYS));
      const float2 range = known.mask_of(mask, first, last, key, key_end);
      open = df_attention_is_open(range);
      if (!(range.y < 0.0f))
        break;
      const float bound = df_attention_bound(p, known.most_of(DF_ATTENTION_Q, entry, first, last),
                                             known.most_of(DF_ATTENTION_K, entry, key, key_end));
      const bool finite = known.most_of(DF_ATTENTION_V, entry, key, key_end) < INFINITY;
      if (__syncthreads_or(!finite || !is_below(range.y, bound)))
        break;
    }
    return key;
  }
};

/* Bytes for the summary of a node with these sizes, with the five operands of the gradient. */
static inline int64_t df_attention_summary_bytes(int64_t batch, int64_t m, int64_t n) {
  const int64_t down = df_divide_up(m, DF_ATTENTION_SIDE),
                across = df_divide_up(n, DF_ATTENTION_SIDE);
  const int64_t floats = batch * (4 * down + 2 * across + 2 * down * across);
  return df_divide_up(floats, 16) * 16 * static_cast<int64_t>(sizeof(float));
}

/* Finds the summary in |workspace| where a mask is worth it: one that has a row per query and more
 * than one tile of keys, or one row for all queries and many. |logsum| is null in forward. */
df_status df_attention_summarize(const df_call *call, const df_attention &p, int64_t batch,
                                 const float *logsum, void *workspace,
                                 df_attention_summary *summary);

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
#pragma unroll 1
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

#endif
