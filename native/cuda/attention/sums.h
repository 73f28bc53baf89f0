/* attention/sums.h: sums of the results of attention_grad over rows and the first axis, as
 * gradients of biases are, for attention_grad_sums. Each warp adds up the rows that it has of a
 * tile; these sums meet in the workspace, where a last launch joins them. */
#ifndef DF_CUDA_ATTENTION_SUMS_H
#define DF_CUDA_ATTENTION_SUMS_H
#include "attention/operands.h"
#include "reduce/partials.h"

struct df_attention_sums {
  enum { RESULTS = 3, ROWS = 64, WARPS = int{DF_ATTENTION_BLOCK} / DF_WARP, ALIGNMENT = 256 };
  float *at;    /* [batch][tile][warp][dq, dk, dv][head][column]; null: nobody wants them */
  int64_t rows; /* of them: batch, tiles and warps */
  int32_t heads, width, tiles;

  /* Of results with |width| columns; |logsum| has the axes of the batch, then the queries. */
  template <typename N> static df_attention_sums sized(const N &logsum, int64_t width) {
    df_attention_sums s{};
    s.heads = static_cast<int32_t>(df_product(logsum.shape, 1, logsum.rank - 1));
    s.width = static_cast<int32_t>(width);
    s.tiles = static_cast<int32_t>(df_divide_up(logsum.shape[logsum.rank - 1], ROWS));
    s.rows = logsum.shape[0] * s.tiles * WARPS;
    return s;
  }

  int64_t columns() const { return int64_t{heads} * width; }
  int64_t bytes() const {
    return df_divide_up(rows * RESULTS * columns() * int64_t{sizeof(float)}, ALIGNMENT) * ALIGNMENT;
  }

  /* Those of the calling warp of a tile of an entry. */
  __device__ __forceinline__ float *of(int64_t entry, int32_t tile, int result) const {
    const uint32_t index = static_cast<uint32_t>(entry); /* entries have a block each */
    const uint32_t first = index / static_cast<uint32_t>(heads);
    const int64_t row =
        (int64_t{first} * tiles + tile) * WARPS + static_cast<int>(threadIdx.x) / DF_WARP;
    const uint32_t head = index - first * static_cast<uint32_t>(heads);
    return at + ((row * RESULTS + result) * heads + head) * width;
  }

  df_status join(const df_call *call) const {
    const df_partial_sums to{
        {df_out<float>(call, 3), df_out<float>(call, 4), df_out<float>(call, 5)}};
    return columns() == 0 ? df_status(DF_OK)
                          : df_join_partials(call, to, at, columns(), RESULTS, rows);
  }
};

#endif
