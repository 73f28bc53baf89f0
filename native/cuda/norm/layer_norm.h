/* norm/layer_norm.h: what layer norm and its gradient have in common: the rows of their operands.
 */
#ifndef DF_CUDA_NORM_LAYER_NORM_H
#define DF_CUDA_NORM_LAYER_NORM_H
#include "reduce/rows.h"

/* Rows and columns of |shape| when rows begin at the axis of the attribute. */
struct df_norm_extent {
  int64_t rows, n;
};
template <typename N>
static df_norm_extent df_norm_extent_of(const N *of, const int64_t *shape, int32_t rank) {
  const int64_t axis = df_axis(of, DF_LAYER_NORM_AXIS, rank);
  return {df_product(shape, 0, axis), df_product(shape, axis, rank)};
}

/* Rows of no elements have no mean: zeros. */
static inline df_status df_norm_clear(const df_call *call, float *at, int64_t count) {
  if (!at || count == 0)
    return DF_OK;
  const cudaError_t status = cudaMemsetAsync(at, 0, static_cast<size_t>(count) * sizeof(float),
                                             static_cast<cudaStream_t>(call->stream));
  return status ? df_fail(call, DF_DEVICE, "clearing: %s", cudaGetErrorString(status)) : DF_OK;
}

#endif
