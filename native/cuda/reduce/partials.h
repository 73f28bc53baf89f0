/* reduce/partials.h: sums of columns whose partial sums lie one below the other in a workspace. */
#ifndef DF_CUDA_REDUCE_PARTIALS_H
#define DF_CUDA_REDUCE_PARTIALS_H
#include "reduce/rows.h"

enum { DF_PARTIALS_SIDE = 32, DF_PARTIALS_BELOW = 32 }; /* columns of a block, threads below */

/* Where sums go, |n| columns to each; any may be null. */
struct df_partial_sums {
  float *at[3];
};

/* Joins |partials| rows of |columns| sums in double, always in the same order. */
static __global__ void __launch_bounds__(int{DF_PARTIALS_SIDE} * DF_PARTIALS_BELOW)
    join_partials(df_partial_sums to, const float *sums, int64_t n, int64_t columns,
                  int64_t partials) {
  DF_SHARED_ARRAY(double, shared, [DF_PARTIALS_BELOW][DF_PARTIALS_SIDE + 1]);
  const int thread = static_cast<int>(threadIdx.x), below = static_cast<int>(blockDim.x) / DF_WARP;
  const int side = thread % DF_PARTIALS_SIDE, own = thread / DF_PARTIALS_SIDE;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * DF_PARTIALS_SIDE;
  double sum = 0.0;
  if (begin + side < columns)
#pragma unroll 8 /* loaded together */
    for (int64_t partial = own; partial < partials; partial += below)
      sum += static_cast<double>(sums[partial * columns + begin + side]);
  shared[own][side] = sum;
  __syncthreads();
  for (int column = own; column < DF_PARTIALS_SIDE; column += below) { /* a warp joins a column */
    sum = df_warp_join(side < below ? shared[side][column] : 0.0, df_add{});
    const int64_t at = begin + column;
    if (side == 0 && at < columns) {
      float *own = at < n ? to.at[0] : at < 2 * n ? to.at[1] : to.at[2];
      if (own)
        own[at % n] = static_cast<float>(sum);
    }
  }
}

/* Of |kinds| sums of |n| columns each. */
static inline df_status df_join_partials(const df_call *call, const df_partial_sums &to,
                                         const float *sums, int64_t n, int32_t kinds,
                                         int64_t partials) {
  const int32_t below = df_power_of_two(partials, DF_PARTIALS_BELOW);
  return DF_LAUNCH(call, join_partials, df_blocks(kinds * n, DF_PARTIALS_SIDE),
                   static_cast<unsigned>(DF_PARTIALS_SIDE * below), 0, to, sums, n, kinds * n,
                   partials);
}

#endif
