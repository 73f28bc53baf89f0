/* attention/gradients.h: where the results of attention_grad go, as its kernels see them: of any
 * strides, since dq, dk and dv are often slices of one result. */
#ifndef DF_CUDA_ATTENTION_GRADIENTS_H
#define DF_CUDA_ATTENTION_GRADIENTS_H
#include "attention/mask.h"
#include "attention/result.h"
#include "attention/sums.h"

/* Results of attention_grad, and what its kernels read of each query. */
struct df_attention_gradients {
  df_attention_result dq, dk, dv;
  df_walk<3> walk; /* over the batch of each */
  const float *logsum;
  float *delta; /* sum of dy y; the kernel of queries fills it */
  df_attention_sums sums;
  df_attention_summary tiles;

  /* The matrices dq, dk and dv of an entry. */
  __device__ __forceinline__ void entry(int64_t index, df_attention_result (&own)[3]) const {
    int64_t offset[3];
    walk.offsets_in_short(static_cast<uint32_t>(index), offset);
    own[0] = dq.behind(offset[0]);
    own[1] = dk.behind(offset[1]);
    own[2] = dv.behind(offset[2]);
  }

  /* Whether a mask of at most |mask| closes these queries and keys of an entry. */
  __device__ __forceinline__ bool is_closed(const df_attention &p, int64_t entry, float mask,
                                            int32_t query, int32_t query_end, int32_t key,
                                            int32_t key_end) const {
    constexpr float FINITE = 1e38f; /* for sums of so many products */
    const float bound =
        df_attention_bound(p, tiles.most_of(DF_ATTENTION_Q, entry, query, query_end),
                           tiles.most_of(DF_ATTENTION_K, entry, key, key_end));
    const float most_dy =
        tiles.most_of(DF_ATTENTION_DY, entry, query, query_end) * static_cast<float>(p.e);
    return most_dy * tiles.most_of(DF_ATTENTION_V, entry, key, key_end) < FINITE &&
           most_dy * tiles.most_of(DF_ATTENTION_Y, entry, query, query_end) < FINITE &&
           df_attention_is_below(mask, bound, tiles.least_of(entry, query, query_end));
  }
};

#endif
