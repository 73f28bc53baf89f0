/* reduce/partials.h: sums of columns whose partial sums lie one below the other in a workspace. */
#ifndef DF_CUDA_REDUCE_PARTIALS_H
#define DF_CUDA_REDUCE_PARTIALS_H
#include "reduce/rows.h"

enum { DF_PARTIALS_SIDE = 32, DF_PARTIALS_BELOW = 32 }; /* columns of a block, threads below */

/* Joins |partials| rows of |columns| sums in double, always in the same order. The first |n|
 * columns go to |first|, the others to |second|; either may be null. */
static __global__ void __launch_bounds__(int{DF_PARTIALS_SIDE} * DF_PARTIALS_BELOW)
    join_partials(float *first, float *second, const float *sums, int64_t n, int64_t columns,
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
    float *to = at < n ? first : second;
    if (side == 0 && at < columns && to)
      to[at < n ? at : at - n] = static_cast<float>(sum);
  }
}

static inline df_status df_join_partials(const df_call *call, float *first, float *second,
                                         const float *sums, int64_t n, int64_t columns,
                                         int64_t partials) {
  const int32_t below = df_power_of_two(partials, DF_PARTIALS_BELOW);
  return DF_LAUNCH(call, join_partials, df_blocks(columns, DF_PARTIALS_SIDE),
                   static_cast<unsigned>(DF_PARTIALS_SIDE * below), 0, first, second, sums, n,
                   columns, partials);
}

#endif
