/* map/floats.h: operands of bfloat16 as contiguous floats in the workspace, for kernels that read
 * nothing else, and floats rounded to bfloat16. */
#ifndef DF_CUDA_MAP_FLOATS_H
#define DF_CUDA_MAP_FLOATS_H
#include "map/map.h"
#include "map/stored.h"

struct df_bfloat_to_float {
  __device__ float operator()(uint16_t x) const { return df_from_bfloat(x); }
};

struct df_float_to_bfloat {
  __device__ uint16_t operator()(float x) const { return df_to_bfloat(x); }
};

/* Bytes that so many floats take, behind which anything is aligned. */
static inline int64_t df_floats_bytes(int64_t elements) {
  return df_divide_up(elements * static_cast<int64_t>(sizeof(float)), 256) * 256;
}

/* |x| as contiguous floats at |data|; |strides| is memory for them. */
static inline df_tensor df_floats_of(const df_tensor &x, float *data,
                                     int64_t (&strides)[DF_WALK_RANK]) {
  df_tensor t = x;
  int64_t stride = 1;
  for (int32_t axis = t.rank - 1; axis >= 0; axis--) {
    strides[axis] = stride;
    stride *= t.shape[axis];
  }
  t.data = data;
  t.strides = strides;
  t.dtype = DF_FLOAT32;
  return t;
}

/* Fills what df_floats_of says; of more axes than can be walked over there is none. */
static inline df_status df_fill_floats(const df_call *call, const df_tensor &from,
                                       const df_tensor &floats) {
  const int64_t n = df_elements(&from);
  if (n == 0)
    return DF_OK;
  df_walk<1> walk;
  df_walk_plan<1>(&walk, from.shape, from.rank, {&from});
  return DF_LAUNCH(call, (df_map_strided<df_bfloat_to_float, float, 1, uint16_t>),
                   df_blocks(n, DF_BLOCK), DF_BLOCK, 0, df_bfloat_to_float{},
                   static_cast<float *>(floats.data), n, walk,
                   static_cast<const uint16_t *>(from.data));
}

/* to[i] = from[i], rounded, for i < n. */
static inline df_status df_round_floats(const df_call *call, uint16_t *to, const float *from,
                                        int64_t n) {
  if (n == 0)
    return DF_OK;
  return DF_LAUNCH(call, (df_map_flat<1, df_float_to_bfloat, uint16_t, float>),
                   df_blocks(n, DF_BLOCK), DF_BLOCK, 0, df_float_to_bfloat{}, to, n, 0u, from);
}

#endif
