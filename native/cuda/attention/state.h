/* attention/state.h: the online softmax of a row of scores, block by block, and where the results
 * of attention go. */
#ifndef DF_CUDA_ATTENTION_STATE_H
#define DF_CUDA_ATTENTION_STATE_H
#include "attention/result.h"

/* As a card has it, a NaN loses. */
struct df_attention_larger {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/* The maximum of a row's scores and the sum of e^(score - maximum) over the blocks so far; before
 * the first one -infinity and 0. A NaN may be left out of the maximum: the sum will have it. */
struct df_attention_state {
  float most, sum;

  __device__ __forceinline__ void clear() {
    most = -INFINITY;
    sum = 0.0f;
  }

  /* Begins a block with this maximum. Returns what its scores are to be reduced by. */
  __device__ __forceinline__ float begin(float largest) {
    const float before = most;
    most = fmaxf(before, largest);
    const float base = most == -INFINITY ? 0.0f : most;
    sum = sum == 0.0f ? 0.0f : sum * expf(before - base);
    return base;
  }

  /* Ends it with the block's sum of exponentials. By x these become weights, and by y what was
   * summed of the blocks before is to be multiplied. */
  __device__ __forceinline__ float2 end(float total) {
    const float carried = sum;
    sum = carried + total;
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    return make_float2(inverse, carried * inverse);
  }

  /* NaN for a row that is -infinity throughout, as softmax has it, else 0. */
  __device__ __forceinline__ float closed() const { return most == -INFINITY ? NAN : 0.0f; }

  /* Whether weights are NaN that a safe softmax makes 0. */
  __device__ __forceinline__ bool cleared(bool safe) const {
    return safe && (most == -INFINITY || sum != sum);
  }

  __device__ __forceinline__ float logsum(bool safe) const {
    return cleared(safe) ? INFINITY : most + logf(sum) + closed();
  }
};

/* The sum of 0 v over all keys: 0, or NaN where v isn't finite. */
static __device__ __forceinline__ float df_attention_of_nothing(const df_attention_matrix &v,
                                                                int32_t n, int32_t column) {
  float sum = 0.0f;
  for (int32_t key = 0; key < n; key++)
    sum = fmaf(0.0f, v.element(key * v.row + column * v.column), sum);
  return sum;
}

/* Where the results of a row go, and what becomes of them. */
struct df_attention_row {
  void *to;
  bool rounded; /* to bfloat16 */
  float closed; /* added to them */
  bool cleared; /* whether its weights are 0 */

  __device__ __forceinline__ float result(float y, const df_attention_matrix &v, int32_t n,
                                          int32_t column) const {
    return cleared ? df_attention_of_nothing(v, n, column) : y + closed;
  }

  /* Stores those from |column| on, as far as there are |columns|; |groups|: they are aligned. */
  template <int N>
  __device__ __forceinline__ void put(int32_t column, const float (&v)[N], int32_t columns,
                                      bool groups) const {
    df_attention_result{to, 0, 1, columns, rounded}.put(0, column, v, groups);
  }
};

/* Where results go. A block has a tile of rows of a batch entry and a split of its keys. */
struct df_attention_results {
  void *y;       /* float or, |rounded|, bfloat16 */
  float *logsum; /* null where nobody wants it */
  bool rounded;
  int64_t y_row, y_head, y_entry; /* distances: of rows, of heads, of groups of |heads| entries */
  int32_t heads;
  bool fours;                        /* rows of y or of partials are made of aligned fours */
  int32_t tiles, splits, split_keys; /* tiles of a batch entry; keys of all splits but the last */
  int64_t rows;                      /* of all batch entries */
  float *partials;                   /* per split y contiguous; null for one split */
  df_attention_state *states;        /* per split and row */
  float shift;                       /* 2^shift is at least the number of a split's keys */

  /* What block |index| has. */
  struct task {
    int64_t entry;
    int32_t split, tile, begin, end; /* keys */
  };
  __device__ __forceinline__ task of(uint32_t index, int32_t keys) const {
    const uint32_t blocks = static_cast<uint32_t>(tiles) * static_cast<uint32_t>(splits);
    const uint32_t block = index % blocks;
    task out{};
    out.entry = index / blocks;
    out.split = static_cast<int32_t>(block) / tiles;
    out.tile = static_cast<int32_t>(block) % tiles;
    out.begin = out.split * split_keys;
    out.end = static_cast<int32_t>(df_min(keys, static_cast<int64_t>(out.begin) + split_keys));
    return out;
  }

  __device__ __forceinline__ void *row_of_y(int64_t entry, int64_t row) const {
    const uint32_t at = static_cast<uint32_t>(entry); /* entries have a block each */
    const uint32_t group = at / static_cast<uint32_t>(heads);
    const int64_t before =
        group * y_entry + (at - group * static_cast<uint32_t>(heads)) * y_head + row * y_row;
    return static_cast<char *>(y) + before * (rounded ? 2 : 4);
  }

  /* Ends row |row| of a task, with |first| in one of its threads: notes its state or the logarithm
   * of its sum. */
  __device__ __forceinline__ df_attention_row end_row(const task &t,
                                                      const df_attention_state &state,
                                                      const df_attention &p, int32_t row,
                                                      bool first) const {
    const int64_t at = t.entry * p.m + row;
    if (partials) {
      if (first)
        states[t.split * rows + at] = state;
      return {partials + (t.split * rows + at) * p.e, false, 0.0f, false};
    }
    if (first && logsum)
      logsum[at] = p.n > 0 ? state.logsum(p.safe) : -INFINITY;
    return {row_of_y(t.entry, row), rounded, p.n > 0 ? state.closed() : 0.0f,
            p.n > 0 && state.cleared(p.safe)};
  }
};

#endif
