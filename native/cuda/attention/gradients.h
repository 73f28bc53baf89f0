/* attention/gradients.h: where the results of attention_grad go, as its kernels see them: of any
 * strides, since dq, dk and dv are often slices of one result, float32 or rounded to bfloat16. */
#ifndef DF_CUDA_ATTENTION_GRADIENTS_H
#define DF_CUDA_ATTENTION_GRADIENTS_H
#include "attention/mask.h"
#include "map/stored.h"

/* The matrix of batch entry 0, or of another one behind it. */
struct df_attention_result {
  void *at;
  int64_t row, column; /* strides */
  int32_t width;       /* elements of a row */
  bool rounded;        /* they are bfloat16 */

  __device__ __forceinline__ df_attention_result behind(int64_t elements) const {
    df_attention_result out = *this;
    out.at = static_cast<char *>(at) + elements * (rounded ? 2 : 4);
    return out;
  }

  /* Whether N neighbours of a row, from a multiple of N on, lie together and are aligned. */
  template <int N> __device__ __forceinline__ bool has_groups() const {
    return column == 1 && width % N == 0 && row % N == 0 &&
           reinterpret_cast<uintptr_t>(at) % (N * (rounded ? 2 : 4)) == 0;
  }

  /* Stores those from |first| on of row |of|, as far as there are; |groups|: see above. */
  template <int N>
  __device__ __forceinline__ void put(int64_t of, int first, const float (&v)[N],
                                      bool groups) const {
    const int64_t begin = of * row + first * column;
    float *floats = static_cast<float *>(at) + begin;
    uint16_t *halves = static_cast<uint16_t *>(at) + begin;
    if (groups) {
      if (first < width && rounded)
        df_store_together(halves, v);
      else if (first < width)
        df_store_together(floats, v);
      return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
      if (first + i < width && rounded)
        df_store(halves + i * column, v[i]);
      else if (first + i < width)
        df_store(floats + i * column, v[i]);
  }
};

/* What |x| has for kernels: rows and columns are its last two axes. */
static inline df_attention_result df_attention_result_of(const df_tensor &x) {
  return {x.data, x.strides[x.rank - 2], x.strides[x.rank - 1],
          static_cast<int32_t>(x.shape[x.rank - 1]), x.dtype == DF_BFLOAT16};
}

/* Results of attention_grad, and what its kernels read of each query. */
struct df_attention_gradients {
  df_attention_result dq, dk, dv;
  df_walk<3> walk; /* over the batch of each */
  const float *logsum;
  float *delta; /* sum of dy y; the kernel of queries fills it */
  df_attention_summary tiles;

  /* The matrices dq, dk and dv of an entry. */
  __device__ __forceinline__ void entry(int64_t index, df_attention_result (&own)[3]) const {
    int64_t offset[3];
    walk.offsets(index, offset);
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
