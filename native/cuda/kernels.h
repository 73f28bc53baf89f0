/* kernels.h: what the kernel files of the CUDA plugin share: the table of a family, sizes, and sums
 * over a warp and a block.
 */
#ifndef DF_CUDA_KERNELS_H
#define DF_CUDA_KERNELS_H
#include "dataflow_cuda.h"

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

/* Product of shape[begin..end). */
static inline int64_t df_product(const int64_t *shape, int64_t begin, int64_t end) {
  int64_t product = 1;
  for (int64_t axis = begin; axis < end; axis++)
    product *= shape[axis];
  return product;
}

/* The axis of attribute |index|, counted from the front; |rank| must be at least 1. */
static inline int64_t df_axis(const df_call *call, int32_t index, int64_t otherwise, int32_t rank) {
  int64_t axis = df_attr_int(call, index, otherwise);
  return axis < 0 ? axis + rank : axis;
}

/* True when the string attribute |index| is |text|. */
static inline bool df_attr_is(const df_call *call, int32_t index, const char *text) {
  return index < call->n_attributes && call->attributes[index].kind == DF_ATTR_STRING &&
         !strcmp(call->attributes[index].s, text);
}

/* The data of an operand; null when it is absent. */
template <typename T> static inline T *df_in(const df_call *call, int32_t index) {
  return index < call->n_inputs ? static_cast<T *>(call->inputs[index].data) : nullptr;
}
template <typename T> static inline T *df_out(const df_call *call, int32_t index) {
  return index < call->n_outputs ? static_cast<T *>(call->outputs[index].data) : nullptr;
}

/* Bytes of one element; 0 for types of 4 and 2 bits and those that no kernel sees. */
static inline int64_t df_item_bytes(int32_t dtype) {
  switch (dtype) {
  case DF_INT8:
  case DF_UINT8:
  case DF_BOOL:
  case DF_FLOAT8E4M3FN:
  case DF_FLOAT8E4M3FNUZ:
  case DF_FLOAT8E5M2:
  case DF_FLOAT8E5M2FNUZ:
  case DF_FLOAT8E8M0:
    return 1;
  case DF_FLOAT16:
  case DF_BFLOAT16:
  case DF_INT16:
  case DF_UINT16:
    return 2;
  case DF_FLOAT32:
  case DF_INT32:
  case DF_UINT32:
    return 4;
  case DF_FLOAT64:
  case DF_INT64:
  case DF_UINT64:
  case DF_COMPLEX64:
    return 8;
  case DF_COMPLEX128:
    return 16;
  default:
    return 0;
  }
}

/* accepts: refuses types of 4 and 2 bits. */
static inline const char *df_accepts_whole_bytes(const df_node *node) {
  for (int32_t i = 0; i < node->n_inputs; i++)
    if (node->inputs[i].dtype != DF_NONE && !df_item_bytes(node->inputs[i].dtype))
      return "elements of 4 or 2 bits are not supported";
  for (int32_t i = 0; i < node->n_outputs; i++)
    if (node->outputs[i].dtype != DF_NONE && !df_item_bytes(node->outputs[i].dtype))
      return "elements of 4 or 2 bits are not supported";
  return nullptr;
}

/* ---- Joining the values of threads ---------------------------------------------------------- */

struct df_add {
  template <typename T> __device__ T operator()(T a, T b) const { return a + b; }
};
/* NaN wins. */
struct df_larger {
  template <typename T> __device__ T operator()(T a, T b) const { return a > b || a != a ? a : b; }
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
