/* attention/result.h: where a matrix of a result goes: float32, or rounded to bfloat16. */
#ifndef DF_CUDA_ATTENTION_RESULT_H
#define DF_CUDA_ATTENTION_RESULT_H
#include "attention/operands.h"

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
    if constexpr (N > 1)
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

#endif
