/* attention/mask.cu: summaries of tiles, see attention/mask.h. */
#include "attention/mask.h"

enum { TOGETHER = 8 /* loads of a thread that don't wait for each other */ };

/* f(element) for each of |rows| x |columns| elements of |x|, by the threads of a block. */
template <typename F>
static __device__ __forceinline__ void for_each(const df_attention_matrix &x, int32_t first,
                                                int32_t rows, int32_t key, int32_t columns, F f) {
  const float *from = x.at + first * x.row + key * x.column;
  if (x.fours) {
    const int32_t fours = columns / 4, all = rows * fours;
    for (int32_t base = static_cast<int32_t>(threadIdx.x); base < all;
         base += TOGETHER * int{DF_ATTENTION_BLOCK}) {
      float4 v[TOGETHER];
#pragma unroll
      for (int k = 0; k < TOGETHER; k++) {
        const int32_t index = base + k * DF_ATTENTION_BLOCK, at = index < all ? index : base;
        const int32_t row = at / fours;
        v[k] = *reinterpret_cast<const float4 *>(from + row * x.row + (at - row * fours) * 4);
      }
#pragma unroll
      for (int k = 0; k < TOGETHER; k++) { /* the first again for those that are not there */
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
       base += TOGETHER * int{DF_ATTENTION_BLOCK}) {
    float v[TOGETHER];
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
      const int32_t index = base + k * DF_ATTENTION_BLOCK;
      const int32_t at = index < count ? index : base;
      const int32_t row = down ? at % rows : at / columns, column = down ? at / rows : at % columns;
      v[k] = from[row * x.row + column * x.column];
    }
#pragma unroll
    for (int k = 0; k < TOGETHER; k++)
      f(v[k]);
  }
}

struct df_attention_smaller {
  template <typename T> __device__ T operator()(T a, T b) const { return DF_MINIMUM(a, b); }
};

/* A block per tile: of the masks first, then of each operand, then of logsum. */
__global__ void __launch_bounds__(DF_ATTENTION_BLOCK)
    summarize(const __grid_constant__ df_attention p,
              const __grid_constant__ df_attention_summary s) {
  DF_SHARED_ARRAY(float, scratch, [DF_WARP]);
  DF_SHARED_ARRAY(int32_t, entries, [DF_WARP]);
  const bool first_thread = threadIdx.x == 0;
  int64_t index = blockIdx.x;
  const int64_t tiles = static_cast<int64_t>(s.mask_down) * s.mask_across;
  if (index < p.masks * tiles) {
    const int64_t matrix = index / tiles;
    const int32_t tile = static_cast<int32_t>(index % tiles);
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
    for_each(mask, row, static_cast<int32_t>(df_min(rows - row, DF_ATTENTION_SIDE)), key,
             static_cast<int32_t>(df_min(keys - key, DF_ATTENTION_SIDE)), [&](float x) {
               least = df_attention_smaller{}(least, x);
               most = df_larger{}(most, x);
             });
    least = df_block_join(least, INFINITY, scratch, df_attention_smaller{});
    most = df_block_join(most, -INFINITY, scratch, df_larger{});
    if (first_thread)
      s.mask[index] = make_float2(least, most);
    return;
  }
  index -= p.masks * tiles;
  for (int operand = 0; operand < DF_ATTENTION_OPERANDS; operand++) {
    const bool of_keys = operand == DF_ATTENTION_K || operand == DF_ATTENTION_V;
    const int64_t count = of_keys ? s.across : s.down;
    if (!s.most[operand])
      continue;
    if (index < s.batch * count) {
      const int64_t entry = index / count;
      const int32_t row = static_cast<int32_t>(index % count) * DF_ATTENTION_SIDE;
      df_attention_matrix x = p.matrices[operand];
      x.at += df_attention_offset(p, operand, entry);
      const int32_t rows = (of_keys ? p.n : p.m) - row;
      float most = 0.0f;
      for_each(x, row, static_cast<int32_t>(df_min(rows, DF_ATTENTION_SIDE)), 0, x.width,
               [&](float v) { most = df_larger{}(most, fabsf(v)); });
      most = df_block_join(most, 0.0f, scratch, df_larger{});
      if (first_thread)
        s.most[operand][index] = most;
      return;
    }
    index -= s.batch * count;
  }
  const int64_t entry = index / s.down;
  const int32_t row = static_cast<int32_t>(index % s.down) * DF_ATTENTION_SIDE;
  const int32_t at = row + static_cast<int32_t>(threadIdx.x);
  float least = at < p.m && threadIdx.x < DF_ATTENTION_SIDE ? s.logsum[entry * p.m + at] : INFINITY;
  least = df_block_join(least, INFINITY, scratch, df_attention_smaller{});
  if (first_thread)
    s.least[index] = least;
}

df_status df_attention_summarize(const df_call *call, const df_attention &p, int64_t batch,
                                 const float *logsum, void *workspace,
                                 df_attention_summary *summary) {
  df_attention_summary s{};
  const df_attention_matrix &mask = p.matrices[DF_ATTENTION_MASK];
  s.used = batch < INT32_MAX / 2 && mask.at && p.m > DF_ATTENTION_SIDE / 4 &&
           p.n > (mask.row ? DF_ATTENTION_SIDE : 4 * DF_ATTENTION_SIDE);
  *summary = {};
  if (!s.used)
    return DF_OK;
  s.batch = batch;
  s.down = static_cast<int32_t>(df_divide_up(p.m, DF_ATTENTION_SIDE));
  s.across = static_cast<int32_t>(df_divide_up(p.n, DF_ATTENTION_SIDE));
  s.mask_down = mask.row ? s.down : 1;
  s.mask_across = mask.column ? s.across : 1;
  s.mask = static_cast<float2 *>(workspace);
  s.logsum = logsum;
  int64_t blocks = p.masks * s.mask_down * s.mask_across;
  float *next = reinterpret_cast<float *>(s.mask + blocks);
  for (int operand = 0; operand < DF_ATTENTION_OPERANDS; operand++) {
    const bool of_keys = operand == DF_ATTENTION_K || operand == DF_ATTENTION_V;
    if (operand == DF_ATTENTION_MASK || !p.matrices[operand].at)
      continue;
    s.most[operand] = next;
    next += batch * (of_keys ? s.across : s.down);
    blocks += batch * (of_keys ? s.across : s.down);
  }
  if (logsum) {
    s.least = next;
    blocks += batch * s.down;
  }
  for (const int needed : {DF_ATTENTION_Q, DF_ATTENTION_K, DF_ATTENTION_V})
    if (!s.most[needed]) /* without elements */
      return DF_OK;
  if (blocks > INT32_MAX)
    return DF_OK;
  *summary = s;
  return DF_LAUNCH(call, summarize, static_cast<unsigned>(blocks), DF_ATTENTION_BLOCK, 0, p, s);
}
