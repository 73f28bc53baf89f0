/* kernels.h: what the kernel files of the CUDA plugin share: the table of a family, sizes, and sums
 * over a warp and a block.
 */
#ifndef DF_CUDA_KERNELS_H
#define DF_CUDA_KERNELS_H
#include "dataflow_cuda.h"
#include "kernels/attributes.h"
#include "kernels/extremum.h"

#include <string.h>

/* The records of one file. */
struct df_family {
  const df_kernel *records;
  int64_t count;
};

#include "families.h"

#define DF_CUDA_DECLARE_FAMILY(name) extern const df_family df_##name##_family;
DF_CUDA_FAMILIES(DF_CUDA_DECLARE_FAMILY)
#undef DF_CUDA_DECLARE_FAMILY

/* DF_CUDA_FAMILY(cast, records): the table that plugin.cu lists. */
#define DF_CUDA_FAMILY(name, records)                                                              \
  const df_family df_##name##_family = {records, sizeof records / sizeof *records}

enum {
  DF_BLOCK = 256, /* threads, where nothing speaks for another number */
  DF_WARP = 32
};

static inline __host__ __device__ int64_t df_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline __host__ __device__ int64_t df_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline __host__ __device__ int64_t df_divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/* The data of an operand; null when it is absent. */
template <typename T> static inline T *df_in(const df_call *call, int32_t index) {
  return index < call->n_inputs ? static_cast<T *>(call->inputs[index]->data) : nullptr;
}
template <typename T> static inline T *df_out(const df_call *call, int32_t index) {
  return index < call->n_outputs ? static_cast<T *>(call->outputs[index]->data) : nullptr;
}

/* ---- Joining the values of threads ---------------------------------------------------------- */

struct df_add {
  template <typename T> __device__ T operator()(T a, T b) const { return a + b; }
};
struct df_larger {
  template <typename T> __device__ T operator()(T a, T b) const { return DF_MAXIMUM(a, b); }
};

/* |value| of all lanes of a warp joined, in every lane. All 32 lanes take part. */
template <typename T, typename F> static __device__ __forceinline__ T df_warp_join(T value, F f) {
#pragma unroll
  for (int mask = DF_WARP / 2; mask > 0; mask /= 2)
    value = f(value, __shfl_xor_sync(0xffffffffu, value, mask));
  return value;
}

/* |value| of all threads of a block joined, in every thread. blockDim.x is a multiple of 32, the
 * block has one dimension; |scratch| is shared memory for 32 values, free again on return. */
template <typename T, typename F>
static __device__ __forceinline__ T df_block_join(T value, T nothing, T *scratch, F f) {
  const int lane = static_cast<int>(threadIdx.x) % DF_WARP;
  const int warp = static_cast<int>(threadIdx.x) / DF_WARP;
  const int warps = static_cast<int>(blockDim.x) / DF_WARP;
  value = df_warp_join(value, f);
  if (warps == 1)
    return value;
  if (lane == 0)
    scratch[warp] = value;
  __syncthreads();
  value = df_warp_join(lane < warps ? scratch[lane] : nothing, f);
  __syncthreads();
  return value;
}

#endif
