/* reduce/columns.h: columns of floats that lie side by side, each worked on by some threads of a
 * block. */
#ifndef DF_CUDA_REDUCE_COLUMNS_H
#define DF_CUDA_REDUCE_COLUMNS_H
#include "reduce/rows.h"

/* Blocks of df_columns threads, |across| neighbouring columns side by side and
 * the others below one another. */
enum { DF_COLUMN_BLOCK = 256 };

struct df_columns {
  int64_t outer, size, inner;
  int64_t chunks; /* blocks that cover |inner| */
  int32_t across;
};

static inline df_columns df_columns_plan(int64_t outer, int64_t size, int64_t inner) {
  df_columns plan{outer, size, inner, 1, df_power_of_two(inner, DF_WARP)};
  /* Short columns need no threads below one another. */
  while (plan.across < DF_COLUMN_BLOCK && plan.across < inner &&
         size * plan.across < int{DF_COLUMN_BLOCK} * DF_HELD)
    plan.across *= 2;
  plan.chunks = df_divide_up(inner, plan.across);
  return plan;
}

/* A thread's column: its first element is |origin|, element i of it lies i * inner behind; the
 * thread takes the elements |first|, |first| + |step|, ... */
struct df_column_position {
  int64_t column; /* of outer * inner */
  int64_t origin;
  int first, step;
  bool live;
};

static __device__ __forceinline__ df_column_position df_column_of_thread(const df_columns &plan) {
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t outer = blockIdx.x / plan.chunks;
  const int64_t at = blockIdx.x % plan.chunks * plan.across + thread % plan.across;
  return {outer * plan.inner + at, outer * plan.size * plan.inner + at, thread / plan.across,
          DF_COLUMN_BLOCK / plan.across, at < plan.inner};
}

/* v[k] = element first + k step of the round from |base| on, else |nothing|. */
static __device__ __forceinline__ void df_column_load(float (&v)[DF_HELD], const float *x,
                                                      const df_columns &plan,
                                                      const df_column_position &at, int64_t base,
                                                      float nothing) {
#pragma unroll
  for (int k = 0; k < DF_HELD; k++) {
    const int64_t i = base + at.first + k * at.step;
    v[k] = at.live && i < plan.size ? x[at.origin + i * plan.inner] : nothing;
  }
}

/* A value of the threads of a column joined, in each of them. |shared| has an element per thread
 * and is free again on return. */
struct df_column_join {
  float *shared;
  int across;

  template <typename F> __device__ float operator()(float value, float, F f) const {
    const int thread = static_cast<int>(threadIdx.x);
    if (across == DF_COLUMN_BLOCK)
      return value;
    shared[thread] = value;
    __syncthreads();
    for (int half = DF_COLUMN_BLOCK / 2; half >= across; half /= 2) {
      if (thread < half)
        shared[thread] = f(shared[thread], shared[thread + half]);
      __syncthreads();
    }
    value = shared[thread % across];
    __syncthreads();
    return value;
  }
};

#endif
