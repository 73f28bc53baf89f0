/* attention/summary.cu: summaries of tiles, see attention/mask.h. */
#include "attention/summary.h"

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
    df_attention_summarize_mask(p, s, index, scratch, entries);
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
      df_attention_for_each(x, row, static_cast<int32_t>(df_min(rows, DF_ATTENTION_SIDE)), 0,
                            x.width, [&](float v) { most = df_larger{}(most, fabsf(v)); });
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
  df_attention_summary s;
  int64_t blocks = df_attention_begin_summary(p, batch, workspace, &s);
  *summary = {};
  if (!s.used)
    return DF_OK;
  s.logsum = logsum;
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
