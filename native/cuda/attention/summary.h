/* attention/summary.h: the summary of a tile of a mask, for attention/summary.cu and
 * attention/prepack.cu. */
#ifndef DF_CUDA_ATTENTION_SUMMARY_H
#define DF_CUDA_ATTENTION_SUMMARY_H
#include "attention/mask.h"

enum { DF_ATTENTION_TOGETHER = 8 /* loads of a thread that don't wait for each other */ };

/* f(element) for each of |rows| x |columns| elements of |x|, by the threads of a block. */
template <typename F>
static __device__ __forceinline__ void df_attention_for_each(const df_attention_matrix &x,
                                                             int32_t first, int32_t rows,
                                                             int32_t key, int32_t columns, F f) {
  const float *from = x.at + first * x.row + key * x.column;
  if (x.fours) {
    const int32_t fours = columns / 4, all = rows * fours;
    for (int32_t base = static_cast<int32_t>(threadIdx.x); base < all;
         base += DF_ATTENTION_TOGETHER * int{DF_ATTENTION_BLOCK}) {
      float4 v[DF_ATTENTION_TOGETHER];
#pragma unroll
      for (int k = 0; k < DF_ATTENTION_TOGETHER; k++) {
        const int32_t index = base + k * DF_ATTENTION_BLOCK, at = index < all ? index : base;
        const int32_t row = at / fours;
        v[k] = *reinterpret_cast<const float4 *>(from + row * x.row + (at - row * fours) * 4);
      }
#pragma unroll
      for (int k = 0; k < DF_ATTENTION_TOGETHER;
           k++) { /* the first again for those that are not there */
        f(v[k].x);
        f(v[k].y);
        f(v[k].z);
        f(v[k].w);
      }
    }
    return;
  }
  const int32_t count = rows * columns;
  const bool down = x.column != 1; /* threads side by side read rows that do so */
  for (int32_t base = static_cast<int32_t>(threadIdx.x); base < count;
       base += DF_ATTENTION_TOGETHER * int{DF_ATTENTION_BLOCK}) {
    float v[DF_ATTENTION_TOGETHER];
#pragma unroll
    for (int k = 0; k < DF_ATTENTION_TOGETHER; k++) {
      const int32_t index = base + k * DF_ATTENTION_BLOCK;
      const int32_t at = index < count ? index : base;
      const int32_t row = down ? at % rows : at / columns, column = down ? at / rows : at % columns;
      v[k] = from[row * x.row + column * x.column];
    }
#pragma unroll
    for (int k = 0; k < DF_ATTENTION_TOGETHER; k++)
      f(v[k]);
  }
}

struct df_attention_smaller {
  template <typename T> __device__ T operator()(T a, T b) const { return DF_MINIMUM(a, b); }
};

/* The smallest and largest element of tile |index| of all masks, by a block; |scratch| and
 * |entries| are shared memory for 32 of each. */
static __device__ __forceinline__ void df_attention_summarize_mask(const df_attention &p,
                                                                   const df_attention_summary &s,
                                                                   int64_t index, float *scratch,
                                                                   int32_t *entries) {
  /* A block each, so 32 bits hold them. */
  const uint32_t tiles = static_cast<uint32_t>(s.mask_down) * static_cast<uint32_t>(s.mask_across);
  const uint32_t matrix = static_cast<uint32_t>(index) / tiles;
  const int32_t tile = static_cast<int32_t>(static_cast<uint32_t>(index) - matrix * tiles);
  const int32_t row = tile / s.mask_across * DF_ATTENTION_SIDE;
  const int32_t key = tile % s.mask_across * DF_ATTENTION_SIDE;
  /* The first entry of the batch that reads this mask. */
  int32_t entry = static_cast<int32_t>(threadIdx.x);
  while (entry < s.batch && df_attention_offset(p, DF_ATTENTION_OPERANDS, entry) != matrix)
    entry += DF_ATTENTION_BLOCK;
  entry = df_block_join(entry < s.batch ? entry : INT32_MAX, INT32_MAX, entries,
                        df_attention_smaller{});
  df_attention_matrix mask = p.matrices[DF_ATTENTION_MASK];
  mask.at += df_attention_offset(p, DF_ATTENTION_MASK, entry);
  float least = INFINITY, most = -INFINITY;
  const int32_t rows = mask.row ? p.m : 1, keys = mask.column ? p.n : 1;
  df_attention_for_each(mask, row, static_cast<int32_t>(df_min(rows - row, DF_ATTENTION_SIDE)), key,
                        static_cast<int32_t>(df_min(keys - key, DF_ATTENTION_SIDE)), [&](float x) {
                          least = df_attention_smaller{}(least, x);
                          most = df_larger{}(most, x);
                        });
  least = df_block_join(least, INFINITY, scratch, df_attention_smaller{});
  most = df_block_join(most, -INFINITY, scratch, df_larger{});
  if (threadIdx.x == 0)
    s.mask[index] = make_float2(least, most);
}

/* What of a summary is known from the sizes: whether a mask is worth it, and its tiles, which are
 * the first in |workspace|. Returns how many tiles of masks there are. */
static inline int64_t df_attention_begin_summary(const df_attention &p, int64_t batch,
                                                 void *workspace, df_attention_summary *s) {
  const df_attention_matrix &mask = p.matrices[DF_ATTENTION_MASK];
  *s = {};
  s->used = batch < INT32_MAX / 2 && mask.at && p.m > DF_ATTENTION_SIDE / 4 &&
            p.n > (mask.row ? DF_ATTENTION_SIDE : 4 * DF_ATTENTION_SIDE);
  s->batch = batch;
  s->down = static_cast<int32_t>(df_divide_up(p.m, DF_ATTENTION_SIDE));
  s->across = static_cast<int32_t>(df_divide_up(p.n, DF_ATTENTION_SIDE));
  s->mask_down = mask.row ? s->down : 1;
  s->mask_across = mask.column ? s->across : 1;
  s->mask = static_cast<float2 *>(workspace);
  return s->used ? p.masks * s->mask_down * s->mask_across : 0;
}

#endif
